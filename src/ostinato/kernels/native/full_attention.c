/* Attention of all queries of a sentence, forwards and backwards:
 *
 *     p = softmax(scale q k^T + mask)        w = makes_up kept * p        y = w v
 *
 *     dv = w^T dy        dp = makes_up kept * (dy v^T)        ds = p * (dp - sum_s p dp)
 *     dq = scale ds k        dk = scale ds^T q
 *
 * Scores are never kept: a thread takes one head of keys of one sentence, and of the queries that read it a block at a
 * time, whose scores stay in its cache. What the backward pass needs of them are the highest score and one over the sum
 * of the exponentials of every row; the scores are made anew. (That scores need not be kept: Rabe and Staats 2021; by
 * blocks, with the sums kept: Dao et al. 2022.) One thread makes every number, in one order: results are the same for
 * any number of threads.
 */

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "tiles.h"

#define BLOCK 48 /* queries at a time; a multiple of TILE_ROWS */

/* [sentence, head, position, K], in numbers; the K numbers of a position lie side by side. */
typedef struct {
    float *start;
    int64_t by_sentence, by_head, by_position;
} Heads;

typedef struct {
    Heads q, k, v, y; /* backwards, y is the gradient of what was read */
    Heads of_q, of_k, of_v;
    const float *mask; /* [.., .., .., S], or NULL; a stride of 0 where all have the same */
    int64_t mask_by_sentence, mask_by_head, mask_by_query;
    const uint8_t *kept; /* [B, H, Q, S], or NULL: all */
    float *rows;         /* [B, H, Q, 2]: highest score, one over the sum of exponentials */
    int64_t n_sentences, n_heads, n_kv_heads, n_queries, n_keys, d_head;
    float scale, makes_up;
    int32_t is_causal;
} FullAttention;

INLINE float *at(const Heads *x, int64_t sentence, int64_t head, int64_t position) {
    return x->start + sentence * x->by_sentence + head * x->by_head + position * x->by_position;
}

/* c [rows, columns] (+)= a [rows, n] b [n, columns], b and c row by row. Rows are taken TILE_ROWS at a time and columns by
 * whole vectors: there is room for both behind c, and numbers, whatever they are, behind a and b. */
INLINE void product(int64_t rows, int64_t columns, int64_t n, const float *a, int64_t a_row, int64_t a_column, const float *b,
                    int64_t b_row, float *c, int64_t c_row, int mode) {
    int64_t left = whole(columns, LANES) / LANES;
    while (left > 0) {
        const int vecs = left == 2 || left == 4 ? 2 : left == 1 ? 1 : TILE_VECS;
        for (int64_t i = 0; i < rows; i += TILE_ROWS) {
            const float *left_side = a + i * a_row;
            float *out = c + i * c_row;
#define TILE(v) tile(v, TILE_ROWS, v * LANES, n, left_side, NULL, a_row, a_column, b, b_row, out, c_row, mode, NULL)
            if (vecs == 3) TILE(3);
            if (vecs == 2) TILE(2);
            if (vecs == 1) TILE(1);
        }
        b += vecs * LANES, c += vecs * LANES, left -= vecs;
    }
}

/* c = a b of rows of a. Apart from the next, so that a step of 1 is known to the compiler. */
static __attribute__((noinline)) void multiply(int64_t rows, int64_t columns, int64_t n, const float *a, int64_t a_row,
                                               const float *b, int64_t b_row, float *c, int64_t c_row) {
    product(rows, columns, n, a, a_row, 1, b, b_row, c, c_row, REPLACE);
}

/* c += a^T b. */
static __attribute__((noinline)) void add_transposed(int64_t rows, int64_t columns, int64_t n, const float *a, int64_t a_row,
                                                     const float *b, int64_t b_row, float *c, int64_t c_row) {
    product(rows, columns, n, a, 1, a_row, b, b_row, c, c_row, ADD);
}

static void copy_rows(const float *x, int64_t x_row, int64_t n, int64_t width, float factor, float *y, int64_t y_row) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < width; k++) y[i * y_row + k] = x[i * x_row + k] * factor;
}

INLINE vec4 higher_of_4(vec4 a, vec4 b) {
    const ivec4 is_first = a > b;
    return (vec4)(((ivec4)a & is_first) | ((ivec4)b & ~is_first));
}

/* The highest of n numbers. Whole vectors are read: behind the numbers stands -inf, which `score` has written. */
INLINE float highest(const float *x, int64_t n) {
    vec found = load(x);
    for (int64_t i = LANES; i < n; i += LANES) found = higher(load(x + i), found);
    Lanes all = {.whole = found};
#if LANES == 16
    all.parts[0] = higher_of_4(all.parts[0], all.parts[2]);
    all.parts[1] = higher_of_4(all.parts[1], all.parts[3]);
#endif
    const vec4 top = higher_of_4(all.parts[0], all.parts[1]);
    const float a = top[0] > top[1] ? top[0] : top[1], b = top[2] > top[3] ? top[2] : top[3];
    return a > b ? a : b;
}

/* What a thread has room for: keys and values of one head, queries of one block. All rows of numbers are whole vectors,
 * zeros behind what is there. */
typedef struct {
    int64_t key_row, row; /* numbers in a row of S, and of K */
    float *keys_T, *values_T, *keys, *values, *of_keys, *of_values;
    float *queries, *read, *scores, *of_scores;
    int64_t size; /* of all of it, in numbers */
} Room;

static Room room_in(const FullAttention *w, float *start) {
    Room r = {.key_row = whole(w->n_keys, LANES), .row = whole(w->d_head, LANES)};
    const int64_t transposed = w->d_head * r.key_row, upright = whole(w->n_keys, TILE_ROWS) * r.row;
    const int64_t of_queries = BLOCK * r.row, of_scores = BLOCK * r.key_row;
    r.keys_T = start, r.values_T = r.keys_T + transposed;
    r.keys = r.values_T + transposed, r.values = r.keys + upright;
    r.of_keys = r.values + upright, r.of_values = r.of_keys + upright;
    r.queries = r.of_values + upright, r.read = r.queries + of_queries;
    r.scores = r.read + of_queries, r.of_scores = r.scores + of_scores;
    r.size = whole(2 * transposed + 4 * upright + 2 * of_queries + 2 * of_scores, 16);
    return r;
}

/* One block: queries `first` to before first + n of a head, which see keys up to before `seen`. */
typedef struct {
    int64_t sentence, head, first, n, seen;
} Block;

static Block block_of(const FullAttention *w, int64_t sentence, int64_t head, int64_t first) {
    const int64_t left = w->n_queries - first, n = left < BLOCK ? left : BLOCK;
    return (Block){sentence, head, first, n, w->is_causal ? first + n : w->n_keys};
}

/* Scores of a block, with the mask. */
static void score(const FullAttention *w, const Room *r, const Block *b) {
    copy_rows(at(&w->q, b->sentence, b->head, b->first), w->q.by_position, b->n, w->d_head, w->scale, r->queries, r->row);
    multiply(b->n, b->seen, w->d_head, r->queries, r->row, r->keys_T, r->key_row, r->scores, r->key_row);
    const float *mask = w->mask;
    if (mask) mask += b->sentence * w->mask_by_sentence + b->head * w->mask_by_head + b->first * w->mask_by_query;
    for (int64_t i = 0; i < b->n; i++) {
        float *scores = r->scores + i * r->key_row;
        if (mask)
            for (int64_t s = 0; s < b->seen; s++) scores[s] += mask[i * w->mask_by_query + s];
        /* Later keys, and what stands behind the last: their exponentials are 0. */
        for (int64_t s = w->is_causal ? b->first + i + 1 : b->seen; s < whole(b->seen, LANES); s++) scores[s] = -INFINITY;
    }
}

/* x *= makes_up kept */
INLINE void drop(const FullAttention *w, const uint8_t *kept, float *x, int64_t n) {
    for (int64_t s = 0; s < n; s++) x[s] *= w->makes_up * kept[s];
}

static void read_block(const FullAttention *w, const Room *r, const Block *b) {
    const int64_t row = (b->sentence * w->n_heads + b->head) * w->n_queries + b->first;
    score(w, r, b);
    for (int64_t i = 0; i < b->n; i++) {
        float *x = r->scores + i * r->key_row;
        const float top = highest(x, b->seen);
        vec sums = {0};
        for (int64_t s = 0; s < b->seen; s += LANES) {
            const vec y = exp_below_zero(load(x + s) - top);
            store(x + s, y);
            sums += y;
        }
        const float factor = 1.0f / sum_lanes(sums);
        w->rows[2 * (row + i)] = top, w->rows[2 * (row + i) + 1] = factor;
        for (int64_t s = 0; s < b->seen; s += LANES) store(x + s, load(x + s) * factor);
        if (w->kept) drop(w, w->kept + (row + i) * w->n_keys, x, b->seen);
    }
    multiply(b->n, w->d_head, b->seen, r->scores, r->key_row, r->values, r->row, r->read, r->row);
    copy_rows(r->read, r->row, b->n, w->d_head, 1, at(&w->y, b->sentence, b->head, b->first), w->y.by_position);
}

static void backward_block(const FullAttention *w, const Room *r, const Block *b) {
    const int64_t row = (b->sentence * w->n_heads + b->head) * w->n_queries + b->first;
    score(w, r, b);
    copy_rows(at(&w->y, b->sentence, b->head, b->first), w->y.by_position, b->n, w->d_head, 1, r->read, r->row);
    multiply(b->n, b->seen, w->d_head, r->read, r->row, r->values_T, r->key_row, r->of_scores, r->key_row);
    for (int64_t i = 0; i < b->n; i++) {
        float *x = r->scores + i * r->key_row, *d = r->of_scores + i * r->key_row;
        const float top = w->rows[2 * (row + i)], factor = w->rows[2 * (row + i) + 1];
        const uint8_t *kept = w->kept ? w->kept + (row + i) * w->n_keys : NULL;
        if (kept) drop(w, kept, d, b->seen);
        vec sums = {0};
        for (int64_t s = 0; s < b->seen; s += LANES) {
            const vec p = exp_below_zero(load(x + s) - top) * factor;
            store(x + s, p);
            sums += p * load(d + s);
        }
        const float sum = sum_lanes(sums);
        for (int64_t s = 0; s < b->seen; s += LANES) store(d + s, load(x + s) * (load(d + s) - sum));
        if (kept) drop(w, kept, x, b->seen);
    }
    add_transposed(b->seen, w->d_head, b->n, r->scores, r->key_row, r->read, r->row, r->of_values, r->row);
    add_transposed(b->seen, w->d_head, b->n, r->of_scores, r->key_row, r->queries, r->row, r->of_keys, r->row);
    multiply(b->n, w->d_head, b->seen, r->of_scores, r->key_row, r->keys, r->row, r->read, r->row);
    copy_rows(r->read, r->row, b->n, w->d_head, w->scale, at(&w->of_q, b->sentence, b->head, b->first), w->of_q.by_position);
}

/* What is read from every head of keys of every sentence, or backwards the gradients. Not 0: there is no memory for it. */
int64_t full_attention(const FullAttention *w, int64_t is_backward, int64_t n_threads) {
    const int64_t S = w->n_keys, K = w->d_head, n_groups = w->n_heads / w->n_kv_heads, size = room_in(w, NULL).size;
    float *all = aligned_alloc(64, n_threads * size * sizeof(float));
    if (!all) return 1;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        const Room r = room_in(w, all + omp_get_thread_num() * size);
        memset(r.keys_T, 0, size * sizeof(float));
#pragma omp for
        for (int64_t unit = 0; unit < w->n_sentences * w->n_kv_heads; unit++) {
            const int64_t sentence = unit / w->n_kv_heads, shared = unit % w->n_kv_heads;
            const float *keys = at(&w->k, sentence, shared, 0), *values = at(&w->v, sentence, shared, 0);
            transpose(keys, w->k.by_position, S, K, r.keys_T, r.key_row);
            if (is_backward) {
                copy_rows(keys, w->k.by_position, S, K, 1, r.keys, r.row);
                transpose(values, w->v.by_position, S, K, r.values_T, r.key_row);
                memset(r.of_keys, 0, S * r.row * sizeof(float));
                memset(r.of_values, 0, S * r.row * sizeof(float));
            } else {
                copy_rows(values, w->v.by_position, S, K, 1, r.values, r.row);
            }
            for (int64_t head = shared * n_groups; head < (shared + 1) * n_groups; head++)
                for (int64_t first = 0; first < w->n_queries; first += BLOCK) {
                    const Block b = block_of(w, sentence, head, first);
                    if (is_backward)
                        backward_block(w, &r, &b);
                    else
                        read_block(w, &r, &b);
                }
            if (is_backward) {
                copy_rows(r.of_keys, r.row, S, K, 1, at(&w->of_k, sentence, shared, 0), w->of_k.by_position);
                copy_rows(r.of_values, r.row, S, K, 1, at(&w->of_v, sentence, shared, 0), w->of_v.by_position);
            }
        }
    }
    free(all);
    return 0;
}
