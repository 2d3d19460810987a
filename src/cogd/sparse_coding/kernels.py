"""Compiled loops of the working-set solver, over plain arrays.

Images lie one after the other in one flat `residual`, each as (channels, padded rows, stride). A code is named by its
`position`, the flat index of the upper left pixel that its atom touches in channel 0; channel c of image i lies
`c * planes[i]` further, row y `y * strides[i]` further. `seen` has the residual's layout and holds 1 where a pixel was
observed, else 0; the residual is 0 there, which is all that boundaries and missing pixels need.

Legend: r residual b - D z, d atom, z code, g = <d, r> on its patch, K atoms, Q = C h w numbers of an atom.
"""

import numpy as np
from numba import njit

LANES = 16  # atoms' rows are padded to a multiple of it: one AVX-512 register of float32, two of AVX
CHUNK = 512  # positions of one tile of the gradient; K x CHUNK numbers stay in the second-level cache
TAPS = 8  # numbers of an atom that one pass over a tile uses
GROUP = 3  # atoms that share the loads of a pass: GROUP x TAPS registers of coefficients
RELAXATION = np.float32(1.5)  # of the atoms' steps; below 2 the objective cannot rise
SAFE_FASTMATH = {"contract", "reassoc", "nsz", "arcp"}  # all but what assumes that nan and inf do not occur


def compiled(function):
    """Compile on first use, keep the machine code on disk, and run without Python's lock."""
    try:
        return njit(function, nogil=True, cache=True, fastmath=SAFE_FASTMATH)
    except RuntimeError as error:  # neither this package's folder nor the user's cache may be written
        raise OSError(f"cannot keep compiled code: {error}. Set NUMBA_CACHE_DIR to a folder to write to.") from error


@compiled
def correlate(residual, start, offsets, atoms, gradient):
    """Write gradient[k, t] = sum_q atoms[k, q] residual[start + t + offsets[q]]: a tile of the codes' gradient."""
    size = gradient.shape[1]
    gradient[:] = 0
    for q in range(0, offsets.shape[0], TAPS):
        r0 = residual[start + offsets[q] : start + offsets[q] + size]
        r1 = residual[start + offsets[q + 1] : start + offsets[q + 1] + size]
        r2 = residual[start + offsets[q + 2] : start + offsets[q + 2] + size]
        r3 = residual[start + offsets[q + 3] : start + offsets[q + 3] + size]
        r4 = residual[start + offsets[q + 4] : start + offsets[q + 4] + size]
        r5 = residual[start + offsets[q + 5] : start + offsets[q + 5] + size]
        r6 = residual[start + offsets[q + 6] : start + offsets[q + 6] + size]
        r7 = residual[start + offsets[q + 7] : start + offsets[q + 7] + size]
        for k in range(0, atoms.shape[0], GROUP):
            a0, a1, a2, a3 = atoms[k, q], atoms[k, q + 1], atoms[k, q + 2], atoms[k, q + 3]
            a4, a5, a6, a7 = atoms[k, q + 4], atoms[k, q + 5], atoms[k, q + 6], atoms[k, q + 7]
            b0, b1, b2, b3 = atoms[k + 1, q], atoms[k + 1, q + 1], atoms[k + 1, q + 2], atoms[k + 1, q + 3]
            b4, b5, b6, b7 = atoms[k + 1, q + 4], atoms[k + 1, q + 5], atoms[k + 1, q + 6], atoms[k + 1, q + 7]
            c0, c1, c2, c3 = atoms[k + 2, q], atoms[k + 2, q + 1], atoms[k + 2, q + 2], atoms[k + 2, q + 3]
            c4, c5, c6, c7 = atoms[k + 2, q + 4], atoms[k + 2, q + 5], atoms[k + 2, q + 6], atoms[k + 2, q + 7]
            ga, gb, gc = gradient[k], gradient[k + 1], gradient[k + 2]
            for t in range(size):
                v0, v1, v2, v3, v4, v5, v6, v7 = r0[t], r1[t], r2[t], r3[t], r4[t], r5[t], r6[t], r7[t]
                ga[t] += a0 * v0 + a1 * v1 + a2 * v2 + a3 * v3 + a4 * v4 + a5 * v5 + a6 * v6 + a7 * v7
                gb[t] += b0 * v0 + b1 * v1 + b2 * v2 + b3 * v3 + b4 * v4 + b5 * v5 + b6 * v6 + b7 * v7
                gc[t] += c0 * v0 + c1 * v1 + c2 * v2 + c3 * v3 + c4 * v4 + c5 * v5 + c6 * v6 + c7 * v7


@compiled
def strongest(residual, begin, end, offsets, atoms, position, atom, best, which):
    """Write, for positions from `begin` to `end`, the largest |g| among codes outside of the working set, and its atom.

    `position` and `atom` are the working set's codes in that range, in order of position.
    """
    gradient = np.empty((atoms.shape[0], CHUNK), residual.dtype)
    j = 0
    for start in range(begin, end, CHUNK):
        correlate(residual, start, offsets, atoms, gradient)
        size = min(CHUNK, end - start)
        while j < position.shape[0] and position[j] < start + size:
            gradient[atom[j], position[j] - start] = 0
            j += 1
        top, index = best[start : start + size], which[start : start + size]
        top[:] = 0
        for k in range(atoms.shape[0]):
            row = gradient[k]
            for t in range(size):
                magnitude = abs(row[t])
                larger = magnitude > top[t]
                top[t] = magnitude if larger else top[t]
                index[t] = k if larger else index[t]


@compiled
def winners(best, begin, stride, rows, columns, block, limit, found):
    """Write into `found` the position of the largest `best` above `limit` of every block; return how many."""
    count = 0
    for top in range(0, rows, block):
        for left in range(0, columns, block):
            largest, where = limit, -1
            for y in range(top, min(top + block, rows)):
                for x in range(left, min(left + block, columns)):
                    here = begin + y * stride + x
                    if best[here] > largest:
                        largest, where = best[here], here
            if where >= 0:
                found[count] = where
                count += 1
    return count


@compiled
def patch_product(residual, position, plane, stride, atom, lanes):
    """Return g = <d, r> on the atom's patch."""
    lanes[:] = 0
    for c in range(atom.shape[0]):
        for y in range(atom.shape[1]):
            first = position + c * plane + y * stride
            for left in range(0, atom.shape[2], LANES):
                d, r = atom[c, y, left : left + LANES], residual[first + left : first + left + LANES]
                for x in range(LANES):
                    lanes[x] += d[x] * r[x]
    return lanes.sum()


@compiled
def subtract(residual, seen, position, plane, stride, atom, amount):
    """Subtract amount * d from the residual's observed pixels of the atom's patch."""
    for c in range(atom.shape[0]):
        for y in range(atom.shape[1]):
            first = position + c * plane + y * stride
            for left in range(0, atom.shape[2], LANES):
                d, r = atom[c, y, left : left + LANES], residual[first + left : first + left + LANES]
                m = seen[first + left : first + left + LANES]
                for x in range(LANES):
                    r[x] -= amount * d[x] * m[x]


@compiled
def subtract_all(residual, seen, planes, strides, atoms, position, image, atom, value):
    """Subtract D z."""
    for j in range(position.shape[0]):
        i = image[j]
        subtract(residual, seen, position[j], planes[i], strides[i], atoms[atom[j]], value[j])


@compiled
def squared_norms(seen, planes, strides, atoms, position, image, atom, norms):
    """Write the squared norm of each code's atom on its observed pixels."""
    lanes = np.empty(LANES, seen.dtype)
    squares = atoms * atoms
    for j in range(position.shape[0]):
        plane, stride = planes[image[j]], strides[image[j]]
        norms[j] = patch_product(seen, position[j], plane, stride, squares[atom[j]], lanes)


@compiled
def sweep(residual, seen, planes, strides, atoms, penalty, position, image, atom, norms, value, sweeps):
    """Minimise the objective exactly over one code after the other, `sweeps` times.

    Returns by how much the last sweep changed any code's own gradient at most: |change| times the squared norm.
    """
    lanes = np.empty(LANES, residual.dtype)
    zero = residual.dtype.type(0)
    largest = zero
    for _ in range(sweeps):
        largest = zero
        for j in range(position.shape[0]):
            if norms[j] <= zero:
                continue
            plane, stride, d = planes[image[j]], strides[image[j]], atoms[atom[j]]
            pull = value[j] * norms[j] + patch_product(residual, position[j], plane, stride, d, lanes)
            new = (max(pull - penalty, zero) + min(pull + penalty, zero)) / norms[j]
            change = new - value[j]
            if change != zero:
                subtract(residual, seen, position[j], plane, stride, d, change)
                value[j] = new
                largest = max(largest, abs(change) * norms[j])
    return largest


@compiled
def curvature(value, position, image, strides, height, width, members):
    """Return a bound on the curvature of the objective in one atom: sum over shifts of |autocorrelation of its codes|.

    Masks only lower the curvature, so the bound holds for any. `members` are in order of position.
    """
    bound = value.dtype.type(0)
    for i in range(members.shape[0]):
        a = members[i]
        stride = strides[image[a]]
        bound += value[a] * value[a]
        for b in members[i + 1 :]:
            rows = position[b] // stride - position[a] // stride
            if image[b] != image[a] or rows >= height:
                break
            if abs(position[b] % stride - position[a] % stride) < width:
                bound += 2 * abs(value[a] * value[b])
    return bound


@compiled
def improve_atoms(residual, seen, planes, strides, atoms, width, position, image, value, order, starts):
    """Take one over-relaxed projected gradient step on one atom after the other, in place.

    order[starts[k] : starts[k + 1]] are the codes of atom k.
    """
    channels, height, padded = atoms.shape[1:]
    gradient = np.empty((channels, height, padded), residual.dtype)
    one = residual.dtype.type(1)
    for k in range(atoms.shape[0]):
        members = order[starts[k] : starts[k + 1]]
        bound = curvature(value, position, image, strides, height, width, members)
        if bound <= 0:
            continue
        gradient[:] = 0
        for j in members:
            plane, stride = planes[image[j]], strides[image[j]]
            for c in range(channels):
                for y in range(height):
                    first = position[j] + c * plane + y * stride
                    r, g = residual[first : first + width], gradient[c, y]
                    for x in range(width):
                        g[x] += value[j] * r[x]
        new = atoms[k] + gradient * (RELAXATION / bound)
        norm = np.sqrt((new * new).sum())
        new /= max(norm, one)  # the projection on the unit ball
        gradient[:] = new - atoms[k]
        atoms[k] = new
        for j in members:
            subtract(residual, seen, position[j], planes[image[j]], strides[image[j]], gradient, value[j])
