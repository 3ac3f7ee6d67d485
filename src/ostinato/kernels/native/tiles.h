/* What products of many rows are made of: a block of sums that stays in registers, and transposed copies. */

#ifndef OSTINATO_TILES_H
#define OSTINATO_TILES_H

#include "vectors.h"

/* A tile of sums: so many rows by so many vectors. What is left of the registers holds a row of the right side. */
#if LANES == 16
#define TILE_ROWS 8
#else
#define TILE_ROWS 4
#endif
#define TILE_VECS 3

enum { REPLACE, ADD };

/* The first n numbers of a vector. A call, which compilers do not unroll for every vector of a tile. */
static __attribute__((noinline, unused)) void store_some(const Lanes *x, int64_t n, float *c, int mode, const float *bias) {
    for (int64_t i = 0; i < n; i++) c[i] = x->lanes[i] + (mode == ADD ? c[i] : 0) + (bias ? bias[i] : 0);
}

/* c (+)= a b + bias for one tile: c [rows, columns], a [rows, n], b [n, columns]. Steps of a are 1 along one dimension.
 *
 * `index` says which rows of a they are; NULL: those from a on. `rows` and `columns` may be less than a tile has: the others
 * are neither read of a nor written; b has whole vectors, as many as `vecs`. Where they are constants that fill a tile, the
 * edges cost nothing. */
INLINE void tile(int vecs, int rows, int64_t columns, int64_t n, const float *a, const int64_t *index, int64_t a_row,
                 int64_t a_column, const float *b, int64_t b_row, float *c, int64_t c_row, int mode, const float *bias) {
    vec sums[TILE_ROWS][TILE_VECS];
    const float *of_row[TILE_ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++) {
        const int at = i < rows ? i : rows - 1;
        of_row[i] = a + (index ? index[at] : at) * a_row;
    }
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 3
        for (int j = 0; j < vecs; j++) sums[i][j] = (vec){0};
    for (int64_t s = 0; s < n; s++) {
        vec right[TILE_VECS];
#pragma GCC unroll 3
        for (int j = 0; j < vecs; j++) {
            right[j] = load(b + s * b_row + j * LANES);
            KEEP_IN_REGISTER(right[j]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < TILE_ROWS; i++) {
            const float left = of_row[i][s * a_column];
#pragma GCC unroll 3
            for (int j = 0; j < vecs; j++) sums[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++) {
        if (i >= rows) continue;
#pragma GCC unroll 3
        for (int j = 0; j < vecs; j++) {
            float *out = c + i * c_row + j * LANES;
            const int64_t left = columns - j * LANES;
            if (left >= LANES) {
                if (mode == ADD) sums[i][j] += load(out);
                if (bias) sums[i][j] += load(bias + j * LANES);
                store(out, sums[i][j]);
                continue;
            }
            const Lanes some = {.whole = sums[i][j]};
            store_some(&some, left, out, mode, bias ? bias + j * LANES : NULL);
        }
    }
}

/* y [width, n] = x^T, squares of four at a time. */
static void transpose(const float *x, int64_t x_row, int64_t n, int64_t width, float *y, int64_t y_row) {
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float *rows = x + i * x_row;
        int64_t k = 0;
        for (; k + 4 <= width; k += 4) {
            const vec4 a = *(const vec4 *)(rows + k), b = *(const vec4 *)(rows + x_row + k);
            const vec4 c = *(const vec4 *)(rows + 2 * x_row + k), d = *(const vec4 *)(rows + 3 * x_row + k);
            for (int j = 0; j < 4; j++) *(vec4 *)(y + (k + j) * y_row + i) = (vec4){a[j], b[j], c[j], d[j]};
        }
        for (; k < width; k++)
            for (int j = 0; j < 4; j++) y[k * y_row + i + j] = rows[j * x_row + k];
    }
    for (; i < n; i++)
        for (int64_t k = 0; k < width; k++) y[k * y_row + i] = x[i * x_row + k];
}

INLINE int64_t whole(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

#endif
