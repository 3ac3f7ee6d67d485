/* y = x W^T + b of some rows: x [N, D], W [F, D], both row by row.
 *
 * With few rows it takes as long as reading W does: four rows of W are multiplied by all rows of x, some at a
 * time, while later rows of W are prefetched. W is read once and as it lies, without a packed copy; x is copied. Every
 * output is one sum in one order, whatever the number of rows and of threads.
 */

#ifndef OSTINATO_PRODUCTS_H
#define OSTINATO_PRODUCTS_H

#include <stdlib.h>
#include <string.h>

#include "vectors.h"

enum { NO_ACTIVATION = 0, RELU = 1, GELU = 2, RELU2 = 3, GELU_TANH = 4, SILU = 5, TANH = 6 };

#define UNIT LANES  /* outputs that one thread makes, at least */
#define ROWS_OF_W 4 /* in a tile, and of x: with as many sums as leave registers for what they are made of */
#if LANES == 16
#define ROWS_OF_X 6
#else
#define ROWS_OF_X 3
#endif
#define CHUNK 512 /* numbers of a row at a time: what a tile reads of x and of W stays in the cache */
#define AHEAD 4096 /* numbers of W from what is read to what is prefetched, at least */

typedef struct {
    const float *weight; /* [F, D] */
    const float *bias;   /* [F], or NULL */
    int64_t n_in, n_out;
} Matrix;

INLINE vec activated(vec x, int activation) {
    const vec low = {0};
    if (activation == RELU) return pick(x < 0, low, x); /* NaN stays NaN */
    if (activation == GELU) return gelu(x);
    if (activation == RELU2) return pick(x < 0, low, x * x);
    if (activation == GELU_TANH) return times_sigmoid(x, 1.59576912f * (x + 0.044715f * x * x * x));
    if (activation == SILU) return times_sigmoid(x, x);
    if (activation == TANH) {
        Lanes all = {.whole = x};
        for (int lane = 0; lane < LANES; lane++) all.lanes[lane] = tanhf(all.lanes[lane]);
        return all.whole;
    }
    return x;
}

/* Where the chunk of columns ends that begins at `first`. The last columns, fewer than a vector, are one of their own. */
INLINE int64_t chunk_end(int64_t first, int64_t D) {
    const int64_t whole = D / LANES * LANES;
    return first < whole ? least(first + CHUNK, whole) : D;
}

/* A vector whose first n numbers are these, the others 0. */
INLINE vec first_of(const float *at, int64_t n) {
    Lanes all = {0};
    memcpy(all.lanes, at, n * sizeof(float));
    return all.whole;
}

/* Tiles of so many rows of x. They differ by one row at most: a tile of a row or two would wait for W. */
INLINE int64_t tiles(int64_t n_rows) { return (n_rows + ROWS_OF_X - 1) / ROWS_OF_X; }

/* Rows of the first of `n_left` tiles. */
INLINE int64_t rows_of_tile(int64_t n_rows, int64_t n_left) { return (n_rows + n_left - 1) / n_left; }

/* Copy x in the order in which `tile` reads it: for every chunk of columns, for every tile, for every vector of columns
 * in the chunk, that vector of the tile's rows. Then it is read from one end to the other, which processors prefetch. */
static void interleave(const float *x, int64_t n_rows, int64_t D, float *y) {
    for (int64_t first = 0, end; first < D; first = end) {
        end = chunk_end(first, D);
        for (int64_t n = 0, left = tiles(n_rows), next; left; left--, n = next) {
            next = n + rows_of_tile(n_rows - n, left);
            for (int64_t d = first; d < end; d += LANES)
                for (int64_t row = n; row < next; row++, y += LANES)
                    store(y, end - d < LANES ? first_of(x + row * D + d, end - d) : load(x + row * D + d));
        }
    }
}

/* Products of up to ROWS_OF_X interleaved rows of x with some of W, over a chunk of n columns. Between chunks the sums of every
 * lane are kept in `sums`; behind the last one their totals are `found`.
 * Of the rows of W whose bits are in `asked`, what lies `ahead` numbers on is prefetched. */
INLINE void tile(int asked, int64_t ahead, int n_rows, const float *x, const float *const *w, int64_t n, int is_first,
                 int is_last, float *sums, vec4 *found) {
    vec own[ROWS_OF_X][ROWS_OF_W];
#pragma GCC unroll 8
    for (int row = 0; row < n_rows; row++)
#pragma GCC unroll 4
        for (int i = 0; i < ROWS_OF_W; i++) own[row][i] = is_first ? (vec){0} : load(sums + (row * ROWS_OF_W + i) * LANES);
    if (n_rows == 1) { /* W about in the order in which it lies, which processors prefetch */
#pragma GCC unroll 4
        for (int i = 0; i < ROWS_OF_W; i += 16 / LANES) /* with AVX2 two rows: a sum alone would wait for itself */
            for (int64_t d = 0; d < n; d += LANES)
#pragma GCC unroll 2
                for (int one = i; one < i + 16 / LANES; one++) {
                    if (asked & 1 << one) __builtin_prefetch(w[one] + d + ahead, 0, 2);
                    own[0][one] += load(x + d) * load(w[one] + d);
                }
    }
    for (int64_t d = 0; d < n && n_rows > 1; d += LANES, x += n_rows * LANES) {
        vec values[ROWS_OF_X];
#pragma GCC unroll 8
        for (int row = 0; row < n_rows; row++) {
            values[row] = load(x + row * LANES);
            KEEP_IN_REGISTER(values[row]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < ROWS_OF_W; i++) {
            vec of_w = load(w[i] + d);
            if (asked & 1 << i) __builtin_prefetch(w[i] + d + ahead, 0, 2);
            KEEP_IN_REGISTER(of_w);
#pragma GCC unroll 8
            for (int row = 0; row < n_rows; row++) own[row][i] += values[row] * of_w;
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < n_rows; row++) {
        if (is_last) {
            found[row] = four_sums(own[row][0], own[row][1], own[row][2], own[row][3]);
            continue;
        }
#pragma GCC unroll 4
        for (int i = 0; i < ROWS_OF_W; i++) store(sums + (row * ROWS_OF_W + i) * LANES, own[row][i]);
    }
}

/* Up to ROWS_OF_W outputs of all rows, from f on, of x `copied`. `room` [N, ROWS_OF_W, LANES]: for sums. */
static void outputs(const float *copied, int64_t n_rows, const Matrix *m, int64_t f, int n_out, float *y, int64_t width,
                    float *room) {
    const int64_t D = m->n_in, block = ROWS_OF_W * D, ahead = (AHEAD + block - 1) / block * block; /* the same of later rows */
    const int64_t n_tiles = tiles(n_rows);
    vec4 bias = {0};
    if (m->bias) memcpy(&bias, m->bias + f, n_out * sizeof(float));
    for (int64_t d = 0, end; d < D; d = end) {
        end = chunk_end(d, D);
        const int is_last = end == D, is_part = end - d < LANES;
        const int64_t n = is_part ? LANES : end - d;
        const float *w[ROWS_OF_W];
        vec parts[ROWS_OF_W];
        for (int i = 0; i < ROWS_OF_W; i++) {
            w[i] = m->weight + (f + least(i, n_out - 1)) * D + d; /* the last row again where there are fewer */
            if (is_part) parts[i] = first_of(w[i], end - d), w[i] = (const float *)(parts + i);
        }
        for (int64_t row = 0, left = n_tiles, rows; left; left--, row += rows) {
            const float *x = copied + n_rows * d + row * n;
            rows = rows_of_tile(n_rows - row, left);
            float *sums = room + row * ROWS_OF_W * LANES;
            vec4 found[ROWS_OF_X];
/* The first two tiles prefetch half of W each: then memory is read all the while, and not in the first one only. */
#define OF_ROWS(n_of_x) \
    if (rows == n_of_x && n_tiles == 1) tile(15, ahead, n_of_x, x, w, n, !d, is_last, sums, found); \
    else if (rows == n_of_x && left == n_tiles) tile(3, ahead, n_of_x, x, w, n, !d, is_last, sums, found); \
    else if (rows == n_of_x && left == n_tiles - 1) tile(12, ahead, n_of_x, x, w, n, !d, is_last, sums, found); \
    else if (rows == n_of_x) tile(0, 0, n_of_x, x, w, n, !d, is_last, sums, found)
            OF_ROWS(1);
            OF_ROWS(2);
            OF_ROWS(3);
#if ROWS_OF_X > 3
            OF_ROWS(4);
            OF_ROWS(5);
            OF_ROWS(6);
#endif
            for (int of_tile = 0; of_tile < rows && is_last; of_tile++) {
                float *made = y + (row + of_tile) * width + f;
                found[of_tile] += bias;
                if (n_out == ROWS_OF_W)
                    *(vec4 *)made = found[of_tile];
                else
                    memcpy(made, found + of_tile, n_out * sizeof(float));
            }
        }
    }
}

/* Numbers `first` to before `last` of all rows, in place: all by vectors, so that none depends on where a thread's part ends. */
static __attribute__((noinline)) void activate(float *y, int64_t n_rows, int64_t first, int64_t last, int64_t width,
                                               int activation) {
    for (int64_t n = 0; n < n_rows; n++) {
        float *row = y + n * width;
        int64_t f = first;
        for (; f + LANES <= last; f += LANES) store(row + f, activated(load(row + f), activation));
        if (f == last) continue;
        const Lanes made = {.whole = activated(first_of(row + f, last - f), activation)};
        memcpy(row + f, made.lanes, (last - f) * sizeof(float));
    }
}

/* Outputs `first` to before `last` of all rows, into rows of `width` numbers. */
static void product(const float *x, int64_t n_rows, const Matrix *m, int64_t first, int64_t last, float *y, int64_t width,
                    int activation) {
    const int64_t all_lanes = (m->n_in + LANES - 1) / LANES * LANES;
    float *room = malloc(n_rows * (ROWS_OF_W * LANES + all_lanes) * sizeof(float)), *copied = room + n_rows * ROWS_OF_W * LANES;
    interleave(x, n_rows, m->n_in, copied);
    for (int64_t f = first; f < last; f += ROWS_OF_W)
        outputs(copied, n_rows, m, f, (int)least(last - f, ROWS_OF_W), y, width, room);
    free(room);
    /* Apart: calls among the sums would take their registers away. */
    if (activation != NO_ACTIVATION) activate(y, n_rows, first, last, width, activation);
}

/* The part of n things that a thread does, in whole blocks. */
typedef struct {
    int64_t first, last;
} Share;

INLINE Share share(int64_t n, int64_t unit, int thread, int n_threads) {
    const int64_t units = (n + unit - 1) / unit;
    const int64_t first = units * thread / n_threads * unit, last = units * (thread + 1) / n_threads * unit;
    return (Share){first < n ? first : n, last < n ? last : n};
}

#endif
