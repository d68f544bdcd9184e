// Scans: running totals along rows, with pointwise work before and after. One file a layout of the rows.
#pragma once

#include "row_scan.cuh"
#include "row_scan_strided.cuh"
