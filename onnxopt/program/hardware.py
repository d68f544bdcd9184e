"""Hardware: sizes that every NVIDIA GPU has had since compute capability 7.5.

Sizes that differ between GPUs (shared memory, whose limits are here, and multiprocessors) and thresholds that were
measured on one GPU are data in costs/.
"""

from __future__ import annotations

ACCESS_BYTES = 16  # the widest load or store of one instruction
SECTOR_BYTES = 32  # the least that device memory moves
WARP = 32  # threads that execute one instruction together
MAX_SHARED_BYTES = 227 << 10  # shared memory that a block can have on the GPU where it can have most
STATIC_SHARED_BYTES = 48 << 10  # shared memory that a block gets without asking the driver for more
