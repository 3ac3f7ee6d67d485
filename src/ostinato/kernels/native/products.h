/* y = x W^T + b of some rows: x [N, D], W [F, D], both row by row.
 *
 * With few rows it takes as long as reading W does. A block of rows of W meets a block of rows of x, the sums of all pairs
 * in registers; W is read once and as it lies, without a packed copy. Every output is one sum in one order, whatever
 * the number of threads.
 */

#ifndef OSTINATO_PRODUCTS_H
#define OSTINATO_PRODUCTS_H

#include <stdlib.h>
#include <string.h>

#include "vectors.h"

enum { NO_ACTIVATION = 0, RELU = 1, GELU = 2, RELU2 = 3, GELU_TANH = 4, SILU = 5, TANH = 6 };

/* Rows of W in a block (NARROW: beside more rows of x), and of x: with as many sums as leave registers for what they are
 * made of. */
#define WIDE 8
#define NARROW 4
#define SHORT_ROW 512 /* numbers */
#if LANES == 16
#define TALL 2
#define MOST_TALL 6
#else
#define TALL 1
#define MOST_TALL 3
#endif

typedef struct {
    const float *weight; /* [F, D] */
    const float *bias;   /* [F], or NULL */
    int64_t n_in, n_out;
} Matrix;

INLINE vec activated(vec x, int activation) {
    const vec low = {0};
    if (activation == RELU) return pick(x > 0, x, low);
    if (activation == GELU) return gelu(x);
    if (activation == RELU2) return pick(x > 0, x * x, low);
    if (activation == GELU_TANH) return times_sigmoid(x, 1.59576912f * (x + 0.044715f * x * x * x));
    if (activation == SILU) return times_sigmoid(x, x);
    if (activation == TANH) {
        Lanes all = {.whole = x};
        for (int lane = 0; lane < LANES; lane++) all.lanes[lane] = tanhf(all.lanes[lane]);
        return all.whole;
    }
    return x;
}

/* What a block asks for ahead of its time. */
enum { NOTHING = 0, NEXT_BLOCK = 1, NEXT_ROWS = 2 };

INLINE void block(int n_rows, int n_out, int ahead, const float *x, const Matrix *m, int64_t f, float *y, int64_t width) {
    const int64_t D = m->n_in;
    const float *w = m->weight + f * D;
    vec sums[MOST_TALL][WIDE];
    int64_t d = 0;
#pragma GCC unroll 8
    for (int n = 0; n < n_rows; n++)
#pragma GCC unroll 8
        for (int i = 0; i < n_out; i++) sums[n][i] = (vec){0};
    for (; d + LANES <= D; d += LANES) {
        vec values[MOST_TALL];
#pragma GCC unroll 8
        for (int n = 0; n < n_rows; n++) {
            values[n] = load(x + n * D + d);
            KEEP_IN_REGISTER(values[n]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < n_out; i++) {
            vec row = load(w + i * D + d);
            if (n_rows > 1) KEEP_IN_REGISTER(row);
            if (ahead == NEXT_BLOCK) __builtin_prefetch(w + n_out * (D + d) + i * LANES);
            if (ahead == NEXT_ROWS) __builtin_prefetch(w + (WIDE + i) * D + d);
#pragma GCC unroll 8
            for (int n = 0; n < n_rows; n++) sums[n][i] += values[n] * row;
        }
    }
    for (int n = 0; n < n_rows; n++)
        for (int i = 0; i < n_out; i++) {
            float sum = sum_lanes(sums[n][i]);
            for (int64_t rest = d; rest < D; rest++) sum += x[n * D + rest] * w[i * D + rest];
            if (m->bias) sum += m->bias[f + i];
            y[n * width + f + i] = sum;
        }
}

/* The first block of a column of W, which asks for what the next column reads. With AVX2 (else it was not measured) rows of up
 * to half a page are over before a processor sees them coming: the next block is asked for in the order in which it lies in
 * memory. Longer ones it does see coming, but not where several rows of x keep it busy. */
INLINE void first_block(int n_rows, int n_out, const float *x, const Matrix *m, int64_t f, float *y, int64_t width) {
    if (LANES == 8 && m->n_in <= SHORT_ROW)
        block(n_rows, n_out, NEXT_BLOCK, x, m, f, y, width);
    else
        block(n_rows, n_out, LANES == 16 || n_rows > 1 ? NEXT_ROWS : NOTHING, x, m, f, y, width);
}

/* All rows of x, `tall` of them at a time, and what is left. */
INLINE void column(int tall, int n_out, int64_t n_rows, const float *x, const Matrix *m, int64_t f, float *y,
                   int64_t width) {
    int64_t n = 0;
    if (n_rows >= tall)
        first_block(tall, n_out, x, m, f, y, width), n = tall;
    else if (n_rows)
        first_block(1, n_out, x, m, f, y, width), n = 1;
    for (; n + tall <= n_rows; n += tall) block(tall, n_out, NOTHING, x + n * m->n_in, m, f, y + n * width, width);
    if (tall == 3 && n_rows - n == 2) block(2, n_out, NOTHING, x + n * m->n_in, m, f, y + n * width, width), n += 2;
    for (; n < n_rows; n++) block(1, n_out, NOTHING, x + n * m->n_in, m, f, y + n * width, width);
}

#if LANES == 8 /* with AVX-512 it was not measured */
#define MANY 8    /* rows from which on it pays to copy them */
#define CHUNK 512 /* numbers of a row at a time: what three rows of x and four of W hold of them stays near */
#define LINE 16   /* numbers that come from memory together */

/* Copy x in the order in which `tile` reads it: for every chunk of columns, for every three rows, for every vector of columns in
 * the chunk, that vector of the three rows. Then it is read from one end to the other, which processors see coming. */
static void interleave(const float *x, int64_t n_rows, int64_t D, float *y) {
    for (int64_t first = 0; first + LANES <= D; first += CHUNK)
        for (int64_t n = 0; n < n_rows; n += 3)
            for (int64_t d = first; d + LANES <= D && d < first + CHUNK; d += LANES)
                for (int64_t row = n; row < n_rows && row < n + 3; row++, y += LANES) store(y, load(x + row * D + d));
}

/* Products of up to three interleaved rows of x with four of W, over a chunk of n columns. Between chunks the sums of every lane
 * are kept in `sums`; behind the last one their totals are `found`, four for every row of x. */
INLINE void tile(int n_rows, const float *x, const float *w, int64_t D, int64_t n, int is_first, int is_last, float *sums,
                 vec4 *found) {
    vec own[3][NARROW];
#pragma GCC unroll 3
    for (int row = 0; row < n_rows; row++)
#pragma GCC unroll 4
        for (int i = 0; i < NARROW; i++) own[row][i] = is_first ? (vec){0} : load(sums + (row * NARROW + i) * LANES);
    for (int64_t d = 0; d < n; d += LANES, x += n_rows * LANES) {
        vec values[3];
#pragma GCC unroll 3
        for (int row = 0; row < n_rows; row++) {
            values[row] = load(x + row * LANES);
            KEEP_IN_REGISTER(values[row]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < NARROW; i++) {
            vec of_w = load(w + i * D + d);
            KEEP_IN_REGISTER(of_w);
#pragma GCC unroll 3
            for (int row = 0; row < n_rows; row++) own[row][i] += values[row] * of_w;
        }
    }
#pragma GCC unroll 3
    for (int row = 0; row < n_rows; row++) {
        if (is_last) {
            found[row] = four_sums(own[row][0], own[row][1], own[row][2], own[row][3]);
            continue;
        }
#pragma GCC unroll 4
        for (int i = 0; i < NARROW; i++) store(sums + (row * NARROW + i) * LANES, own[row][i]);
    }
}

/* Outputs of many rows, from `first` on as many fours as there are; returns where they end. `room`: for x and 4 n_rows vectors.
 * While some rows of W are multiplied, those that follow are asked for, a part of them for every three rows of x. */
static int64_t many_rows(const float *x, int64_t n_rows, const Matrix *m, int64_t first, int64_t last, float *y, int64_t width,
                         float *room) {
    const int64_t D = m->n_in, whole = D / LANES * LANES, n_tiles = (n_rows + 2) / 3;
    float *copied = room + n_rows * NARROW * LANES;
    int64_t f = first;
    interleave(x, n_rows, D, copied);
    for (; f + NARROW <= last; f += NARROW) {
        const float *w = m->weight + f * D;
        for (int64_t d = 0; d < whole; d += CHUNK) {
            const int64_t n = least(whole - d, CHUNK), is_last = d + n == whole;
            const float *next = is_last ? w + NARROW * D : w + d + n;
            const int64_t n_next = least(is_last ? whole : whole - d - n, CHUNK);
            const int64_t n_lines = (NARROW * ((n_next + LINE - 1) / LINE) + n_tiles - 1) / n_tiles; /* for three rows of x */
            int64_t asked_row = 0, asked = 0;
            for (int64_t row = 0; row < n_rows; row += 3) {
                for (int64_t line = 0; line < n_lines && asked_row < NARROW; line++) {
                    __builtin_prefetch(next + asked_row * D + asked, 0, 2);
                    if ((asked += LINE) >= n_next) asked_row++, asked = 0;
                }
                const float *of_x = copied + n_rows * d + row * n;
                const int rows = (int)least(n_rows - row, 3);
                float *sums = room + row * NARROW * LANES;
                vec4 found[3];
                if (rows == 3) tile(3, of_x, w + d, D, n, !d, is_last, sums, found);
                else if (rows == 2) tile(2, of_x, w + d, D, n, !d, is_last, sums, found);
                else tile(1, of_x, w + d, D, n, !d, is_last, sums, found);
                for (int of_tile = 0; of_tile < rows && is_last; of_tile++) {
                    const float *of_row = x + (row + of_tile) * D;
                    for (int64_t rest = whole; rest < D; rest++)
                        for (int i = 0; i < NARROW; i++) found[of_tile][i] += of_row[rest] * w[i * D + rest];
                    if (m->bias) found[of_tile] += *(const vec4 *)(m->bias + f);
                    *(vec4 *)(y + (row + of_tile) * width + f) = found[of_tile];
                }
            }
        }
    }
    return f;
}
#endif

/* Numbers `first` to before `last` of all rows, in place: all by vectors, so that none depends on where a thread's part ends. */
static __attribute__((noinline)) void activate(float *y, int64_t n_rows, int64_t first, int64_t last, int64_t width,
                                               int activation) {
    for (int64_t n = 0; n < n_rows; n++) {
        float *row = y + n * width;
        int64_t f = first;
        for (; f + LANES <= last; f += LANES) store(row + f, activated(load(row + f), activation));
        if (f == last) continue;
        Lanes some = {0};
        memcpy(some.lanes, row + f, (last - f) * sizeof(float));
        some.whole = activated(some.whole, activation);
        memcpy(row + f, some.lanes, (last - f) * sizeof(float));
    }
}

/* Outputs `first` to before `last` of all rows, into rows of `width` numbers. */
static void product(const float *x, int64_t n_rows, const Matrix *m, int64_t first, int64_t last, float *y, int64_t width,
                    int activation) {
    int64_t f = first;
#if LANES == 8
    if (n_rows >= MANY && last - first >= WIDE && m->n_in >= LANES) {
        float *room = malloc(n_rows * (m->n_in + NARROW * LANES) * sizeof(float));
        if (room) f = many_rows(x, n_rows, m, first, last, y, width, room);
        free(room);
    }
    if (n_rows >= 3) /* of 16 registers twelve are sums, three rows of x and one a row of W */
        for (; f + NARROW <= last; f += NARROW) column(3, NARROW, n_rows, x, m, f, y, width);
#else
    if (n_rows > TALL && n_rows <= MOST_TALL) /* the hypotheses of one sentence: all rows in one block */
        for (; f + NARROW <= last; f += NARROW) {
            if (n_rows == 3) column(3, NARROW, 3, x, m, f, y, width);
            if (n_rows == 4) column(4, NARROW, 4, x, m, f, y, width);
            if (n_rows == 5) column(5, NARROW, 5, x, m, f, y, width);
            if (n_rows == 6) column(6, NARROW, 6, x, m, f, y, width);
        }
#endif
    for (; f + WIDE <= last; f += WIDE) column(TALL, WIDE, n_rows, x, m, f, y, width);
    /* Four by four also where a row is alone: compilers round single sums otherwise than several at a time. */
    for (; f + NARROW <= last; f += NARROW) column(TALL, NARROW, n_rows, x, m, f, y, width);
    for (; f < last; f++) column(TALL, 1, n_rows, x, m, f, y, width);
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
