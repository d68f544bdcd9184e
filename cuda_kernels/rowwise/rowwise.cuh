// Rows: load the elements of a row, reduce, compute on, store; as often as the program reduces. One file a layout.
#pragma once

#include "rowwise/held.cuh"
#include "rowwise/looped.cuh"
#include "rowwise/piped.cuh"
#include "rowwise/ring.cuh"
#include "rowwise/split.cuh"
#include "rowwise/split_strided.cuh"
#include "rowwise/strided.cuh"
