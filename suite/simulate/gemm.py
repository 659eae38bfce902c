"""Seconds of matrix products by their shape."""

import math

from suite.experiment.hardware import Device, Tile

_ALIGNMENT = 8  # elements; what wide loads of 16-bit numbers need


def gemm_seconds(
    device: Device,
    peak: float,
    element: int,
    rows: int,
    columns: int,
    depth: int,
    batch: int = 1,
    cold: float = 0.0,
    resident: float = 0.0,
) -> float:
    """Seconds of `batch` products (rows x depth)(depth x columns) of numbers of `element` bytes on one device.

    The output is cut into tiles, each the work of one of the device's units: what sticks out of the matrix is computed
    in vain, and units without a tile idle. The library is taken to choose the best shape of tile. Where a last wave of
    tiles does not fill the device, its clock makes up for a part, `device.tail` says how little. No product is faster
    than its operands and its result pass through memory; a serial device computes only while they do not. What was just
    computed is in the cache that holds the product; `cold` bytes come from the one that holds the `resident` bytes that
    are used in turn with them.
    """
    wide = columns % _ALIGNMENT == 0 and depth % _ALIGNMENT == 0
    rate = peak * device.gemm_efficiency * (1.0 if wide else device.unaligned) / device.units
    compute = min(_tiles_flops(device, tile, rows, columns, depth, batch) for tile in device.tiles) / rate
    moved = element * batch * (rows * depth + depth * columns + rows * columns)
    travel = (moved - cold) / device.bandwidth(moved) + cold / device.bandwidth(max(moved, resident))
    memory = travel / (device.operand_efficiency or device.memory_efficiency)
    return device.kernel_seconds + (compute + memory if device.serial else max(compute, memory))


def _tiles_flops(device: Device, tile: Tile, rows: int, columns: int, depth: int, batch: int) -> float:
    """FLOPs of one unit, at the speed of the best tile."""
    tiles = -(-rows // tile.rows) * -(-columns // tile.columns) * batch
    one = 2 * tile.rows * tile.columns * (depth + device.gemm_ramp) / tile.speed
    waves = max(1.0, tiles / device.units)
    return waves * (math.ceil(waves) / waves) ** device.tail * one
