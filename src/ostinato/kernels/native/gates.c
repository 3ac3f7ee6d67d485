/* Gates of tokens that may halt: which of n rows go on, and what is added up of them, in one call a round.
 *
 *     adaptive computation time:  p = sigmoid(w x + b), given out until the sum reaches a threshold
 *     stick-breaking:             log (1 - a), log a = log_softmax(V gelu(W h + b) + (0, c))
 *
 * `active` [n] says who takes part, NULL: all; `next` [n] is who goes on. Both kinds return how many do.
 */

#include <omp.h>
#include <string.h>

#include "products.h"

/* y += factor x */
INLINE void add_row(float factor, const float *x, float *y, int64_t D) {
    for (int64_t i = 0; i < D; i++) y[i] += factor * x[i];
}

/* Before a round: the weight of the round for every row, added to `total`; 0 for those that take no part. */
int64_t act_enter(const Matrix *gate, const float *x, int64_t n, const uint8_t *active, float threshold, int64_t is_last,
                  float *total, float *weight, uint8_t *next) {
    int64_t n_next = 0;
    for (int64_t row = 0; row < n; row++) {
        weight[row] = 0, next[row] = 0;
        if (active && !active[row]) continue;
        const float p = 1.0f / (1.0f + expf(-dot(gate->weight, x + row * gate->n_in, (int)gate->n_in) - gate->bias[0]));
        next[row] = !(is_last || total[row] + p > threshold);
        weight[row] = next[row] ? p : 1.0f - total[row];
        total[row] += weight[row];
        n_next += next[row];
    }
    return n_next;
}

/* After it: mix += weight left, or += weight (left - mix); who takes no part stays as `entered`. */
void act_after(const float *weight, const uint8_t *active, const float *entered, int64_t interpolates, float *left, float *mix,
               int64_t n, int64_t D) {
    for (int64_t row = 0; row < n; row++) {
        float *to = mix + row * D;
        if (interpolates)
            for (int64_t i = 0; i < D; i++) to[i] *= 1.0f - weight[row];
        add_row(weight[row], left + row * D, to, D);
        if (active && !active[row]) memmove(left + row * D, entered + row * D, D * sizeof(float));
    }
}

typedef struct {
    Matrix hidden;
    const float *map;  /* V [2, D] */
    const float *bias; /* c, or NULL */
} StickGate;

/* One row, given its hidden state: add what it gives out of its mass to its mean. Returns whether it goes on. */
static int break_stick(const StickGate *g, const float *hidden, const float *h, float least, float *log_left, float *left,
                       float *mean) {
    const int64_t D = g->hidden.n_in;
    const float go = dot(g->map, hidden, (int)D), stop = dot(g->map + D, hidden, (int)D) + (g->bias ? *g->bias : 0.0f);
    const float top = go > stop ? go : stop, log_sum = top + logf(expf(go - top) + expf(stop - top));
    const float next = *log_left + (go - log_sum), mass = expf(next);
    const int goes_on = mass >= least;
    add_row(goes_on ? *left * expf(stop - log_sum) : *left, h, mean, D);
    *left = goes_on ? mass : 0.0f;
    if (goes_on) *log_left = next;
    return goes_on;
}

/* After a round, from the states h [n, D] that left it; `work`: room for as many numbers. */
int64_t stick_halt(const StickGate *g, const float *h, int64_t n, const uint8_t *active, float least, float *log_left,
                   float *left, float *mean, uint8_t *next, float *work, int64_t n_threads) {
    const int64_t D = g->hidden.n_in;
    int64_t n_next = 0;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1) reduction(+ : n_next)
    {
        const int thread = omp_get_thread_num(), all = omp_get_num_threads();
        Share mine = share(D, WIDE, thread, all);
        product(h, n, &g->hidden, mine.first, mine.last, work, D, GELU);
#pragma omp barrier
        mine = share(n, 1, thread, all);
        for (int64_t row = mine.first; row < mine.last; row++) {
            const int runs = !active || active[row];
            next[row] = runs && break_stick(g, work + row * D, h + row * D, least, log_left + row, left + row, mean + row * D);
            n_next += next[row];
        }
    }
    return n_next;
}
