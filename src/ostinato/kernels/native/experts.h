/* Experts: every row runs k of E parameter sets, which a router chooses.
 *
 *     y = sum_k gate_k (x W_{e_k} + b_{e_k})
 *
 * Their weights lie [E, D, F], input by output: blocks of outputs stay in registers while the rows of W_e pass by.
 */

#ifndef OSTINATO_EXPERTS_H
#define OSTINATO_EXPERTS_H

#include <string.h>

#include "products.h"

enum { SOFTMAX = 0, TOPK_SOFTMAX = 1, SIGMOID = 2 };

#define LEAST_SUM 1e-6f  /* added to the sum of the probabilities that are chosen */
#define LEAST_NORM 1e-6f /* of a projected row */

typedef struct {
    Matrix hidden, scores; /* hidden of no outputs: scores are made of the rows themselves */
    int64_t is_normalised; /* scores are cosines: rows of `scores` have length 1, and those of x are given it */
    int64_t n_chosen, gate, is_renormalised;
    int64_t hidden_activation;
    float factor; /* of the scores: 1 / temperature */
} Route;

typedef struct {
    int64_t expert;
    float gate;
} Chosen;

/* The k highest scores of one row, and their gates. */
static void choose(const Route *r, const float *scores, Chosen *chosen) {
    const int64_t E = r->scores.n_out, K = r->n_chosen;
    for (int64_t c = 0; c < K; c++) {
        int64_t best = -1;
        for (int64_t e = 0; e < E; e++) {
            int is_taken = 0;
            for (int64_t b = 0; b < c; b++) is_taken |= chosen[b].expert == e;
            if (!is_taken && (best < 0 || scores[e] > scores[best])) best = e;
        }
        chosen[c].expert = best;
    }
    const float top = scores[chosen[0].expert];
    float all = 0, sum = 0;
    if (r->gate == SOFTMAX)
        for (int64_t e = 0; e < E; e++) all += expf(scores[e] - top);
    for (int64_t c = 0; c < K; c++) {
        const float score = scores[chosen[c].expert];
        chosen[c].gate = r->gate == SIGMOID ? 1.0f / (1.0f + expf(-score)) : expf(score - top);
        if (r->gate == SOFTMAX) chosen[c].gate /= all;
        sum += chosen[c].gate;
    }
    const int is_of_all = r->gate == SOFTMAX && r->is_renormalised;
    const float part = r->gate == TOPK_SOFTMAX ? sum : is_of_all ? sum + LEAST_SUM : 1.0f;
    for (int64_t c = 0; c < K; c++) chosen[c].gate /= part;
}

/* What all threads make together before they choose, of x [n, D]. */
static void route_hidden(const Route *r, const float *x, int64_t n, float *hidden, int thread, int all) {
    const Share mine = share(r->hidden.n_out, UNIT, thread, all);
    product(x, n, &r->hidden, mine.first, mine.last, hidden, r->hidden.n_out, (int)r->hidden_activation);
}

/* Experts of n rows; `scores`: room for n E numbers. */
static void route(const Route *r, const float *x, const float *hidden, int64_t n, float *scores, Chosen *chosen) {
    const int64_t E = r->scores.n_out, C = r->scores.n_in;
    const float *z = r->hidden.n_out ? hidden : x;
    product(z, n, &r->scores, 0, E, scores, E, NO_ACTIVATION);
    for (int64_t row = 0; row < n; row++) {
        float factor = r->factor;
        if (r->is_normalised) {
            const float length = sqrtf(dot(z + row * C, z + row * C, (int)C));
            factor /= length > LEAST_NORM ? length : LEAST_NORM;
        }
        for (int64_t e = 0; e < E; e++) scores[row * E + e] *= factor;
        choose(r, scores + row * E, chosen + row * r->n_chosen);
    }
}

/* What an expert makes of a row: y += gate (x W_e + b_e). */
typedef struct {
    const float *x;
    float *y, gate;
} Visit;

/* Visits at a time. Each has two vectors of even and of odd sums: 16 in 32 registers, 12 in 16. */
#if LANES == 16
#define MOST_VISITS 4
#else
#define MOST_VISITS 3
#endif

/* Rows of W_e that all visits of an expert read before the next ones are read: a thread's columns of so many stay near. */
#define ROWS_AT_A_TIME 128

/* What rows `inputs` of W_e add to `n_vecs` vectors of outputs from f on, of some visits. Even and odd inputs have sums of their
 * own: a sum alone would wait for itself. */
INLINE void expert_block(int n_rows, int n_vecs, const Visit *visits, const Matrix *m, int64_t expert, Share inputs, int64_t f) {
    const int64_t D = m->n_in, F = m->n_out;
    const float *w = m->weight + expert * D * F + f;
    vec even[MOST_VISITS][4], odd[MOST_VISITS][4];
    int64_t d = inputs.first;
#pragma GCC unroll 4
    for (int n = 0; n < n_rows; n++)
#pragma GCC unroll 4
        for (int i = 0; i < n_vecs; i++) even[n][i] = odd[n][i] = (vec){0};
    for (; d + 2 <= inputs.last; d += 2) {
#pragma GCC unroll 4
        for (int i = 0; i < n_vecs; i++) {
            vec first = load(w + d * F + i * LANES), second = load(w + (d + 1) * F + i * LANES);
            __builtin_prefetch(w + d * F + (n_vecs + i) * LANES); /* for the next block */
            __builtin_prefetch(w + (d + 1) * F + (n_vecs + i) * LANES);
            KEEP_IN_REGISTER(first);
            KEEP_IN_REGISTER(second);
#pragma GCC unroll 4
            for (int n = 0; n < n_rows; n++) {
                even[n][i] += visits[n].x[d] * first;
                odd[n][i] += visits[n].x[d + 1] * second;
            }
        }
    }
#pragma GCC unroll 4
    for (int n = 0; n < n_rows; n++)
#pragma GCC unroll 4
        for (int i = 0; i < n_vecs; i++) {
            vec sum = even[n][i] + odd[n][i];
            if (d < inputs.last) sum += visits[n].x[d] * load(w + d * F + i * LANES);
            if (m->bias && !inputs.first) sum += load(m->bias + expert * F + f + i * LANES);
            float *y = visits[n].y + f + i * LANES;
            store(y, load(y) + visits[n].gate * sum);
        }
}

/* Some columns of a block of rows that chose the same expert. */
INLINE void expert_columns(int n_rows, int n_vecs, const Visit *visits, const Matrix *m, int64_t expert, Share inputs,
                           Share columns) {
    const int64_t D = m->n_in, F = m->n_out;
    int64_t f = columns.first;
    for (; f + n_vecs * LANES <= columns.last; f += n_vecs * LANES) expert_block(n_rows, n_vecs, visits, m, expert, inputs, f);
    for (; f + LANES <= columns.last; f += LANES) expert_block(n_rows, 1, visits, m, expert, inputs, f);
    const int64_t rest = columns.last - f;
    for (int n = 0; n < n_rows && rest; n++) {
        /* Added up as in `expert_block`: where vectors end depends on the number of threads. */
        const float *x = visits[n].x, *w = m->weight + expert * D * F + f;
        float even[LANES] = {0}, odd[LANES] = {0}, *y = visits[n].y + f;
        int64_t d = inputs.first;
        for (; d + 2 <= inputs.last; d += 2)
            for (int64_t i = 0; i < rest; i++) even[i] += x[d] * w[d * F + i], odd[i] += x[d + 1] * w[(d + 1) * F + i];
        for (int64_t i = 0; i < rest; i++) {
            float sum = even[i] + odd[i];
            if (d < inputs.last) sum += x[d] * w[d * F + i];
            if (m->bias && !inputs.first) sum += m->bias[expert * F + f + i];
            y[i] += visits[n].gate * sum;
        }
    }
}

/* Some columns of what all choices make, expert by expert, so that one's weights are read once for a few rows. Choice c of
 * row n reads x [n, k, D] or, with `is_shared`, x [n, D], and adds to y [n, k, F] or, with `is_summed`, y [n, F]. */
static void visit_experts(const float *x, int is_shared, const Matrix *m, const Route *r, const Chosen *chosen, int64_t n,
                          Share columns, float *y, int is_summed) {
    const int64_t D = m->n_in, F = m->n_out, k = r->n_chosen, E = r->scores.n_out;
    for (int64_t row = 0; row < (is_summed ? n : n * k); row++)
        memset(y + row * F + columns.first, 0, (columns.last - columns.first) * sizeof(float));
    for (int64_t e = 0; e < E; e++)
        for (Share inputs = {0, 0}; inputs.first < D; inputs.first = inputs.last) {
            inputs.last = least(inputs.first + ROWS_AT_A_TIME, D);
            Visit visits[MOST_VISITS];
            int n_visits = 0;
            for (int64_t i = 0; i < n * k; i++) {
                if (chosen[i].expert != e) continue;
                const float gate = is_summed ? chosen[i].gate : 1.0f;
                visits[n_visits++] = (Visit){x + (is_shared ? i / k : i) * D, y + (is_summed ? i / k : i) * F, gate};
                if (n_visits < MOST_VISITS) continue;
                expert_columns(MOST_VISITS, 2, visits, m, e, inputs, columns), n_visits = 0;
            }
            for (int v = 0; v < n_visits; v++) expert_columns(1, 4, visits + v, m, e, inputs, columns);
        }
}

/* What every choice makes of its row, side by side: x [n, D], y [n, k, F]. */
static void of_choices(const float *x, const Matrix *m, const Route *r, const Chosen *chosen, int64_t n, Share columns, float *y) {
    visit_experts(x, 1, m, r, chosen, n, columns, y, 0);
}

/* The sum over its choices of every row, each of which has an x of its own: x [n, k, D], y [n, F]. */
static void over_choices(const float *x, const Matrix *m, const Route *r, const Chosen *chosen, int64_t n, Share columns, float *y) {
    visit_experts(x, 0, m, r, chosen, n, columns, y, 1);
}

#endif
