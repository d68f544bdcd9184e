// Rows: load the elements of a row, reduce, compute on, store; as often as the program reduces. One file a layout.
#pragma once

#include "row_held.cuh"
#include "row_looped.cuh"
#include "row_piped.cuh"
#include "row_ring.cuh"
#include "row_split.cuh"
#include "row_strided.cuh"
