/* y = x W^T + b of few rows: x [N, D], W [F, D], both row by row.
 *
 * Such a product takes as long as reading W does. A block of rows of W meets a block of rows of x, the sums of all pairs
 * in registers; W is read once and as it lies, without a packed copy. Every output is one sum in one order, whatever
 * the number of threads.
 */

#ifndef OSTINATO_PRODUCTS_H
#define OSTINATO_PRODUCTS_H

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

INLINE float activated(float x, int activation) {
    if (activation == RELU) return x > 0 ? x : 0;
    if (activation == GELU) return gelu(x);
    if (activation == RELU2) return x > 0 ? x * x : 0;
    if (activation == GELU_TANH) return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    if (activation == SILU) return x / (1.0f + expf(-x));
    return activation == TANH ? tanhf(x) : x;
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

/* Numbers `first` to before `last` of all rows, in place. */
static __attribute__((noinline)) void activate(float *y, int64_t n_rows, int64_t first, int64_t last, int64_t width,
                                               int activation) {
    for (int64_t n = 0; n < n_rows; n++)
        if (activation == RELU) /* a loop of its own, which is done by vectors */
            for (int64_t f = first; f < last; f++) y[n * width + f] = y[n * width + f] > 0 ? y[n * width + f] : 0;
        else
            for (int64_t f = first; f < last; f++) y[n * width + f] = activated(y[n * width + f], activation);
}

/* Outputs `first` to before `last` of all rows, into rows of `width` numbers. */
static void product(const float *x, int64_t n_rows, const Matrix *m, int64_t first, int64_t last, float *y, int64_t width,
                    int activation) {
    int64_t f = first;
#if LANES == 8
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
