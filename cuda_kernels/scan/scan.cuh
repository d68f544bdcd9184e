// Scans: running totals along rows, with pointwise work before and after. One file a layout of the rows.
#pragma once

#include "scan/contiguous.cuh"
#include "scan/strided.cuh"
