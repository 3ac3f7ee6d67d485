/* Experts: every row runs k of E parameter sets, which a router chooses.
 *
 *     y = sum_k gate_k (x W_{e_k} + b_{e_k})
 *
 * Their weights lie [E, D, F], input by output: blocks of outputs stay in registers while the rows of W_e pass by.
 */

#ifndef OSTINATO_EXPERTS_H
#define OSTINATO_EXPERTS_H

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
    const Share mine = share(r->hidden.n_out, WIDE, thread, all);
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

/* `n_vecs` vectors of outputs from f on: y = gate (x W_e + b_e), or that added to y. Even and odd inputs have sums of their
 * own, so that one does not wait for the other. */
INLINE void expert_block(int n_vecs, const float *x, const Matrix *m, int64_t expert, int64_t f, float gate, int adds, float *y) {
    const int64_t D = m->n_in, F = m->n_out;
    const float *w = m->weight + expert * D * F + f;
    vec even[4], odd[4];
    int64_t d = 0;
#pragma GCC unroll 4
    for (int i = 0; i < n_vecs; i++) even[i] = odd[i] = (vec){0};
    for (; d + 2 <= D; d += 2) {
#pragma GCC unroll 4
        for (int i = 0; i < n_vecs; i++) {
            even[i] += x[d] * load(w + d * F + i * LANES);
            odd[i] += x[d + 1] * load(w + (d + 1) * F + i * LANES);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n_vecs; i++) {
        vec sum = even[i] + odd[i];
        if (d < D) sum += x[d] * load(w + d * F + i * LANES);
        if (m->bias) sum += load(m->bias + expert * F + f + i * LANES);
        sum *= gate;
        if (adds) sum += load(y + f + i * LANES);
        store(y + f + i * LANES, sum);
    }
}

/* Outputs `first` to before `last` of what one expert makes of one row. */
static void expert_row(const float *x, const Matrix *m, int64_t expert, float gate, int adds, Share columns, float *y) {
    const int64_t D = m->n_in, F = m->n_out;
    int64_t f = columns.first;
    for (; f + 4 * LANES <= columns.last; f += 4 * LANES) expert_block(4, x, m, expert, f, gate, adds, y);
    for (; f + LANES <= columns.last; f += LANES) expert_block(1, x, m, expert, f, gate, adds, y);
    for (; f < columns.last; f++) {
        float sum = m->bias ? m->bias[expert * F + f] : 0;
        for (int64_t d = 0; d < D; d++) sum += x[d] * m->weight[(expert * D + d) * F + f];
        y[f] = gate * sum + (adds ? y[f] : 0);
    }
}

/* What every choice makes of its row, side by side: y [n, k, F]. */
static void of_choices(const float *x, const Matrix *m, const Chosen *chosen, int64_t k, int64_t n, Share columns, float *y) {
    for (int64_t i = 0; i < n * k; i++)
        expert_row(x + i / k * m->n_in, m, chosen[i].expert, 1.0f, 0, columns, y + i * m->n_out);
}

/* The sum over its choices of every row, each of which has an x of its own: x [n, k, D], y [n, F]. */
static void over_choices(const float *x, const Matrix *m, const Chosen *chosen, int64_t k, int64_t n, Share columns, float *y) {
    for (int64_t i = 0; i < n * k; i++)
        expert_row(x + i * m->n_in, m, chosen[i].expert, chosen[i].gate, i % k > 0, columns, y + i / k * m->n_out);
}

#endif
