/* Attention of one new position over cached keys and values.
 *
 *     y = sum_s w_s v_s,   w = softmax(scale q k_s)
 *
 * Keys and values lie in a buffer [2, R, H, room, K]. Where hypotheses have changed places they stay, and `places`
 * [B, n_placed] says in which of the R rows of the buffer position s of hypothesis b lies (as block tables do of paged
 * attention); later positions lie in row b.
 */

#ifndef OSTINATO_ATTENTION_H
#define OSTINATO_ATTENTION_H

#include <stdlib.h>
#include <string.h>

#include "products.h"

#define HIDDEN -1e30f /* as in plain attention: finite, so that who sees nothing gets numbers */

/* Which positions are seen: the same for all sub-layers of a search. */
typedef struct {
    int64_t length;         /* keys, the new one included */
    const int32_t *places;  /* or NULL: every position in its own row */
    int64_t n_placed;
    const uint8_t *keep;    /* [B, length]: real keys; or NULL: all */
    int64_t keep_stride;
} Seen;

typedef struct {
    float *buffer;
    int64_t value_stride, row_stride, head_stride; /* in numbers; a position has K */
    const Seen *seen;
    int64_t n_beams;        /* hypotheses that share a row of the buffer */
    const int64_t *rows;    /* [N]: the hypothesis of every query; or NULL: in order */
    int64_t n_heads, d_head, n_choices;
    float scale;
} Keys;

/* The row of the buffer, or of the table of places, of a query. */
INLINE int64_t row_of(const Keys *k, int64_t n) { return (k->rows ? k->rows[n] : n) / k->n_beams; }

INLINE int64_t place(const Keys *k, int64_t row, int64_t s) {
    return s < k->seen->n_placed ? k->seen->places[row * k->seen->n_placed + s] : row;
}

/* Softmax in place; room for whole vectors behind x. Returns what the weights must be divided by. */
INLINE float exponentials(float *x, int64_t n) {
    const float top = top_of(x, n);
    for (int64_t i = n; i % LANES; i++) x[i] = -INFINITY;
    vec sums = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        const vec y = exp_below_zero(load(x + i) - top);
        store(x + i, y);
        sums += y;
    }
    return sum_lanes(sums);
}

/* A stretch of positions that lie in one row: up to where the next one begins. */
INLINE int64_t stretch_end(const Keys *k, int64_t row, int64_t s) {
    if (s >= k->seen->n_placed) return k->seen->length;
    const int32_t *places = k->seen->places + row * k->seen->n_placed;
    int64_t end = s + 1;
    while (end < k->seen->n_placed && places[end] == places[s]) end++;
    return end;
}

/* y += sum_s weights[s] values[s], of `width` vectors from column i on. Each sum waits for the one before: several at a time do not
 * have to wait for each other. */
INLINE void add_columns(int width, float *y, const float *weights, const float *values, int64_t n, int64_t K, int64_t i) {
    vec sums[8];
#pragma GCC unroll 8
    for (int j = 0; j < width; j++) sums[j] = load(y + i + j * LANES);
    for (int64_t s = 0; s < n; s++)
#pragma GCC unroll 8
        for (int j = 0; j < width; j++) sums[j] += weights[s] * load(values + s * K + i + j * LANES);
#pragma GCC unroll 8
    for (int j = 0; j < width; j++) store(y + i + j * LANES, sums[j]);
}

INLINE void add_values(float *y, const float *weights, const float *values, int64_t n, int64_t K) {
    int64_t i = 0;
    for (; i + 8 * LANES <= K; i += 8 * LANES) add_columns(8, y, weights, values, n, K, i);
    for (; i + 4 * LANES <= K; i += 4 * LANES) add_columns(4, y, weights, values, n, K, i);
    for (; i + 2 * LANES <= K; i += 2 * LANES) add_columns(2, y, weights, values, n, K, i);
    for (; i < K; i++)
        for (int64_t s = 0; s < n; s++) y[i] += weights[s] * values[s * K + i];
}

/* Ask for n numbers that are read soon. Processors do not guess where they begin: stretches of keys are short. */
INLINE void prefetch(const float *at, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(at + i, 0, 2);
}

/* What a query reads; meanwhile its values are prefetched, and then the first keys of the next one. */
INLINE void attend_head(const Keys *k, int64_t row, int64_t head, const float *q, float *y, float *scores, const float *next) {
    const int64_t K = k->d_head;
    const float *of_head = k->buffer + head * k->head_stride;
    memset(y, 0, K * sizeof(float));
    if (!k->seen->length) return; /* nothing is seen */
    for (int64_t s = 0; s < k->seen->length;) {
        const int64_t end = stretch_end(k, row, s);
        const float *keys = of_head + place(k, row, s) * k->row_stride;
        for (; s + 4 <= end; s += 4) {
            prefetch(keys + k->value_stride + s * K, 4 * K);
            *(vec4 *)(scores + s) = k->scale * four_dots(q, keys + s * K, K);
        }
        for (; s < end; s++) scores[s] = k->scale * dot(q, keys + s * K, (int)K);
    }
    if (k->seen->keep)
        for (int64_t s = 0; s < k->seen->length; s++)
            if (!k->seen->keep[row * k->seen->keep_stride + s]) scores[s] = HIDDEN;
    prefetch(next, least(k->seen->length * K, AHEAD / 2));
    const float total = exponentials(scores, k->seen->length);
    for (int64_t s = 0; s < k->seen->length;) {
        const int64_t end = stretch_end(k, row, s);
        const float *values = of_head + k->value_stride + place(k, row, s) * k->row_stride;
        add_values(y, scores + s, values + s * K, end - s, K);
        s = end;
    }
    for (int64_t i = 0; i < K; i++) y[i] /= total;
}

/* What the heads of a share read for all rows: q [N, C H K], rows of `q_width` numbers, y [N, C H K]. A share counts pairs
 * of head and row, head by head, so that what hypotheses have in common is read while it is near. */
static void attend(const Keys *k, const float *q, int64_t q_width, int64_t n_rows, float *y, Share mine) {
    const int64_t heads = k->n_choices * k->n_heads, K = k->d_head;
    float *scores = malloc((k->seen->length + LANES) * sizeof(float));
    for (int64_t i = mine.first; i < mine.last; i++) {
        const int64_t n = i % n_rows, head = i / n_rows;
        const int64_t later = least(i + 1, mine.last - 1), of_later = row_of(k, later % n_rows);
        const float *next = k->buffer + later / n_rows % k->n_heads * k->head_stride + place(k, of_later, 0) * k->row_stride;
        attend_head(k, row_of(k, n), head % k->n_heads, q + n * q_width + head * K, y + (n * heads + head) * K, scores, next);
    }
    free(scores);
}

/* Put new keys and values of some heads, rows [N, 2 H K] of `width` numbers, at the last position of all hypotheses, or of
 * those that `rows` names. */
static void append(const Keys *k, const float *kv, int64_t width, int64_t n_rows, const int64_t *rows, Share heads) {
    const int64_t K = k->d_head, H = k->n_heads;
    for (int64_t n = 0; n < n_rows; n++) {
        const int64_t row = rows ? rows[n] : n;
        for (int64_t part = 0; part < 2; part++)
            for (int64_t head = heads.first; head < heads.last; head++)
                memcpy(k->buffer + part * k->value_stride + row * k->row_stride + head * k->head_stride + (k->seen->length - 1) * K,
                       kv + n * width + (part * H + head) * K, K * sizeof(float));
    }
}

#endif
