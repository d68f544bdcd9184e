// What files.h declares, compiled once for all programs.
#include "files.h"

INSTANTIATE(, float);
INSTANTIATE(, unsigned short);
