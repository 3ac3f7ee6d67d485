/* Sub-layers of one new position a sentence, any number in one call: what cached decoding does at every token.
 *
 *     post-norm:  y = norm(x + f(x))        pre-norm:  y = x + f(norm(x))
 *
 * Threads share the outputs of every product and the heads of attention, and wait for each other in between.
 */

#include <omp.h>

#include "sub_layers.h"

static void normalise(const Norm *norm, const float *x, float *y) {
    const int64_t D = norm->width;
    vec sums = {0}, squares = {0};
    float sum = 0, square = 0;
    int64_t i = 0;
    for (; i + LANES <= D; i += LANES) sums += load(x + i);
    for (sum = sum_lanes(sums); i < D; i++) sum += x[i];
    const float mean = norm->kind == LAYER_NORM ? sum / D : 0;
    for (i = 0; i + LANES <= D; i += LANES) {
        const vec away = load(x + i) - mean;
        squares += away * away;
    }
    for (square = sum_lanes(squares); i < D; i++) square += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / sqrtf(square / D + norm->eps);
    for (i = 0; i < D; i++) {
        float value = (x[i] - mean) * factor;
        if (norm->weight) value *= norm->weight[i];
        y[i] = norm->bias ? value + norm->bias[i] : value;
    }
}

/* What a sub-layer reads of n rows: x, or `room` where a norm stands before it. */
const float *entered(const Norm *norm, const float *x, int64_t n, int64_t D, float *room) {
    if (!norm->width || !norm->is_before) return x;
    for (int64_t row = 0; row < n; row++) normalise(norm, x + row * D, room + row * D);
    return room;
}

/* Rows as they leave the last sub-layer: behind a norm, where there is one. */
void finish(const Norm *last, const float *x, float *y, int64_t n, int64_t D) {
    for (int64_t row = 0; row < n; row++)
        if (last->width)
            normalise(last, x + row * D, y + row * D);
        else if (x != y)
            memcpy(y + row * D, x + row * D, D * sizeof(float));
}

/* x + f, normalised where the norm stands behind. */
static void leave(const Norm *norm, const float *x, const float *f, float *y, int64_t n, int64_t D) {
    for (int64_t i = 0; i < n * D; i++) y[i] = x[i] + f[i];
    if (!norm->width || norm->is_before) return;
    for (int64_t row = 0; row < n; row++) normalise(norm, y + row * D, y + row * D);
}

/* y [N, F] = x W^T + b. */
void few_rows(const Matrix *m, const float *x, float *y, int64_t n, int64_t n_threads) {
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        const Share mine = share(m->n_out, UNIT, omp_get_thread_num(), omp_get_num_threads());
        product(x, n, m, mine.first, mine.last, y, m->n_out, NO_ACTIVATION);
    }
}

/* Append new keys and values [B, 2 H K], where there are any, and read with N queries. */
void read_cache(const Keys *k, const float *q, int64_t q_width, int64_t n, const float *kv, int64_t kv_width, int64_t n_new,
                float *y, int64_t n_threads) {
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        const int thread = omp_get_thread_num(), all = omp_get_num_threads();
        if (kv) {
            append(k, kv, kv_width, n_new, NULL, share(k->n_heads, 1, thread, all));
#pragma omp barrier
        }
        attend(k, q, q_width, n, y, share(n * k->n_heads * k->n_choices, 1, thread, all));
    }
}

/* One of the threads, and memory of its own: what a sub-layer reads [n, D], scores and choices. */
typedef struct {
    int thread, all;
    float *inner, *scores;
    Chosen *chosen;
} Own;

/* Where n rows go, and whether they go anywhere: NULL without experts. `hidden`: room that threads share. */
static const Chosen *routed(const Route *r, const float *x, int64_t n, float *hidden, const Own *own) {
    if (!r) return NULL;
    if (r->hidden.n_out) {
        route_hidden(r, x, n, hidden, own->thread, own->all);
#pragma omp barrier
    }
    route(r, x, hidden, n, own->scores, own->chosen);
    return own->chosen;
}

/* One attention sub-layer of n rows, f of x, by one of the threads. Keys and values are made of `shown`. */
static void attention(const Attention *a, const Keys *k, const float *x, const float *shown, float *f, float *work, int64_t n,
                      const Own *own) {
    const int thread = own->thread, all = own->all;
    const int64_t D = a->output.n_out, C = k->n_choices, I = a->queries.n_out, J = a->keys_values.n_out, K = k->d_head;
    float *q = work, *kv = q + n * C * I, *read = kv + n * J;
    /* A thread makes what its own heads need, and waits for nobody, where every thread has as many heads. */
    const int is_apart = k->n_heads % all == 0;
    const Share heads = share(k->n_heads, 1, thread, all);
    Share mine = is_apart ? (Share){heads.first * K, heads.last * K} : share(I, UNIT, thread, all);
    const float *inner = entered(&a->norm, x, n, D, own->inner);
    const Chosen *chosen = routed(a->route, inner, n, read + n * C * I, own);
    if (chosen)
        of_choices(inner, &a->queries, a->route, chosen, n, mine, q);
    else
        product(inner, n, &a->queries, mine.first, mine.last, q, I, NO_ACTIVATION);
    if (J) {
        if (shown != x) inner = entered(&a->norm, shown, n, D, own->inner);
        product(inner, n, &a->keys_values, mine.first, mine.last, kv, J, NO_ACTIVATION);
        product(inner, n, &a->keys_values, I + mine.first, I + mine.last, kv, J, NO_ACTIVATION);
    }
    if (!is_apart) {
#pragma omp barrier
    }
    if (J) append(k, kv, J, n, k->rows, heads);
    if (!is_apart) {
#pragma omp barrier
    }
    for (int64_t c = 0; c < C; c++) {
        const int64_t first = c * k->n_heads * n, part = k->n_heads * n;
        const Share own_heads = is_apart ? (Share){heads.first * n, heads.last * n} : share(part, 1, thread, all);
        attend(k, q, C * I, n, read, (Share){first + own_heads.first, first + own_heads.last});
    }
#pragma omp barrier
    mine = share(D, UNIT, thread, all);
    if (chosen)
        over_choices(read, &a->output, a->route, chosen, n, mine, f);
    else
        product(read, n, &a->output, mine.first, mine.last, f, D, NO_ACTIVATION);
}

/* The hidden layer of n rows, some columns of it: `work` [n k, F] (k = 1 without experts), behind which gates are kept. */
static void hidden_layer(const FeedForward *m, const float *x, const Chosen *chosen, float *work, int64_t n, Share mine) {
    const int64_t F = m->down.n_in, U = m->up.n_out, k = chosen ? m->route->n_chosen : 1;
    const int is_gated = U != F;
    float *before = is_gated ? work + n * k * F : work;
    /* Gates first, the linear branch behind them; every thread has both halves of its part. */
    for (int64_t half = 0; half <= is_gated; half++) {
        const Share columns = {half * F + mine.first, half * F + mine.last};
        if (chosen)
            of_choices(x, &m->up, m->route, chosen, n, columns, before);
        else
            product(x, n, &m->up, columns.first, columns.last, before, U, is_gated ? NO_ACTIVATION : (int)m->activation);
    }
    if (!is_gated && !chosen) return;
    activate(before, n * k, mine.first, mine.last, U, (int)m->activation);
    if (!is_gated) return;
    for (int64_t row = 0; row < n * k; row++)
        for (int64_t i = mine.first; i < mine.last; i++) work[row * F + i] = before[row * U + i] * before[row * U + F + i];
}

/* One feed-forward sub-layer of n rows, f of x, by one of the threads. */
static void feed_forward(const FeedForward *m, const float *x, float *f, float *work, int64_t n, const Own *own) {
    const int64_t D = m->down.n_out, F = m->down.n_in, k = m->route ? m->route->n_chosen : 1;
    const float *inner = entered(&m->norm, x, n, D, own->inner);
    const Chosen *chosen = routed(m->route, inner, n, work + n * k * (F + (m->up.n_out != F ? m->up.n_out : 0)), own);
    hidden_layer(m, inner, chosen, work, n, share(F, UNIT, own->thread, own->all));
#pragma omp barrier
    const Share mine = share(D, UNIT, own->thread, own->all);
    if (chosen)
        over_choices(work, &m->down, m->route, chosen, n, mine, f);
    else
        product(work, n, &m->down, mine.first, mine.last, f, D, NO_ACTIVATION);
}

static const Route *route_of(const Link *link) { return link->attention ? link->attention->route : link->feed_forward->route; }

/* Sub-layers one after the other, from x to y [n, D], and a last norm; what is `added` before the first is in x. `work`: room for
 * what the widest one makes, and n D more. */
void chain(const Link *links, int64_t n_links, const Norm *last, const float *x, const float *shown, float *y, float *work,
           int64_t n, int64_t D, int64_t n_threads) {
    int64_t most_experts = 0, most_chosen = 0;
    for (int64_t i = 0; i < n_links; i++) {
        const Route *r = route_of(links + i);
        if (r && r->scores.n_out > most_experts) most_experts = r->scores.n_out;
        if (r && r->n_chosen > most_chosen) most_chosen = r->n_chosen;
    }
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        /* Every thread has states of its own: to add and to normalise takes less time than to wait. */
        float *states = malloc(n * (2 * D + most_experts) * sizeof(float)), *f = work;
        Chosen *chosen = malloc(n * most_chosen * sizeof(Chosen));
        const Own own = {omp_get_thread_num(), omp_get_num_threads(), states + n * D, states + 2 * n * D, chosen};
        memcpy(states, x, n * D * sizeof(float));
        for (int64_t i = 0; i < n_links; i++) {
            const Attention *a = links[i].attention;
            const FeedForward *m = links[i].feed_forward;
            if (i && links[i].added)
                for (int64_t row = 0; row < n; row++)
                    add_row(1, links[i].added + row * links[i].added_stride, states + row * D, D);
            if (a)
                attention(a, links[i].keys, states, i || !shown ? states : shown, f, work + n * D, n, &own);
            else
                feed_forward(m, states, f, work + n * D, n, &own);
#pragma omp barrier
            leave(a ? &a->norm : &m->norm, states, f, states, n, D);
        }
        const Share rows = share(n, 1, own.thread, own.all);
        finish(last, states + rows.first * D, y + rows.first * D, rows.last - rows.first, D);
        free(chosen);
        free(states);
    }
}
