/* Tokens that may halt: gates, which say what of n rows goes on and add up what they give, and all rounds in one call.
 *
 *     adaptive computation time:  p = sigmoid(w x + b), given out until the sum reaches a threshold
 *     stick-breaking:             log (1 - a), log a = log_softmax(V gelu(W h + b) + (0, c))
 *
 * `active` [n] says who takes part, NULL: all; `next` [n] is who goes on. Both kinds return how many do.
 */

#include <omp.h>

#include "sub_layers.h"

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
        Share mine = share(D, UNIT, thread, all);
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

enum { ENDS = 0, ACT = 1, STICK = 2 };

typedef struct {
    int64_t kind;
    const int64_t *ends;    /* ENDS: rounds of every row, 1 or more */
    const Matrix *act;      /* ACT */
    const StickGate *stick; /* STICK */
    float enough;           /* ACT: what sums of p exceed to halt; STICK: the least mass to go on with */
    int64_t forces_remainder, interpolates; /* ACT */
} Rule;

/* Rows that go on, side by side. */
typedef struct {
    int64_t n, *rows;                        /* their numbers */
    float *states, *mix;                     /* [n, D]: that left the last round; of ACT and STICK, the output so far */
    float *weight, *total, *log_left, *left; /* [n] */
    uint8_t *next;                           /* who goes on after it */
} Running;

/* Rows that have halted, in order, and what they look like in all rounds to come. */
typedef struct {
    int64_t n, *rows;
    float *shown; /* [n, D] */
} Halted;

static void move_row(Running *on, int64_t from, int64_t to, int64_t D) {
    memcpy(on->states + to * D, on->states + from * D, D * sizeof(float));
    memcpy(on->mix + to * D, on->mix + from * D, D * sizeof(float));
    on->rows[to] = on->rows[from], on->total[to] = on->total[from];
    on->log_left[to] = on->log_left[from], on->left[to] = on->left[from];
}

/* Let rows halt: their output goes to y. */
static void halt(const Rule *rule, Running *on, Halted *off, float *y, int64_t D) {
    int64_t n_kept = 0;
    for (int64_t i = 0; i < on->n; i++) {
        if (on->next[i]) {
            if (n_kept < i) move_row(on, i, n_kept, D);
            n_kept++;
            continue;
        }
        const float *state = on->states + i * D, *mix = on->mix + i * D;
        memcpy(y + on->rows[i] * D, rule->kind == ENDS ? state : mix, D * sizeof(float));
        memcpy(off->shown + off->n * D, rule->kind == STICK ? mix : state, D * sizeof(float));
        off->rows[off->n++] = on->rows[i];
    }
    on->n = n_kept;
}

/* Put keys and values of halted rows at the new position of the rounds that they take no part in, `n_halted` [n_rounds] rows
 * of each. Only later tokens look at them, so this waits until all rounds have run: the maps are read once. `room`: [n, D]. */
static void append_halted(const Link *links, int64_t n_links, int64_t n_rounds, const int64_t *n_halted, const Halted *off,
                          float *room, int64_t D, int64_t n_threads) {
    for (int64_t i = 0; i < n_links && off->n; i++) {
        const Attention *a = links[i].attention;
        if (!a || !a->keys_values.n_out) continue;
        const Matrix *m = &a->keys_values;
        float *kv = malloc(off->n * m->n_out * sizeof(float));
        few_rows(m, entered(&a->norm, off->shown, off->n, D, room), kv, off->n, n_threads);
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
        for (int64_t r = 1; r < n_rounds; r++) {
            const Keys *keys = links[r * n_links + i].keys;
            append(keys, kv, m->n_out, n_halted[r], off->rows, (Share){0, keys->n_heads});
        }
        free(kv);
    }
}

/* Rounds of n rows from x to y [n, D], of `n_links` sub-layers each, whose weights are the same in all rounds, and a last
 * norm. Who has halted is computed no more, but its keys and values are put at the new position of later rounds: later tokens
 * may go deeper, and look at them. What is `added` before the first round is in x. `work`: as of `chain`. */
void rounds(const Link *all, int64_t n_links, int64_t n_rounds, const Norm *last, const Rule *rule, const float *x, float *y,
            float *work, int64_t n, int64_t D, int64_t n_threads) {
    const Norm none = {0};
    float *numbers = malloc(n * (5 * D + 4) * sizeof(float)), *inner = numbers, *shown = inner + n * D;
    float *states = shown + n * D, *mix = states + n * D, *of_row = mix + n * D;
    int64_t *places = malloc((2 * n + n_rounds) * sizeof(int64_t)), *n_halted = places + 2 * n;
    Running on = {n, places, states, mix, of_row, of_row + n, of_row + 2 * n, of_row + 3 * n, malloc(n)};
    Halted off = {0, places + n, of_row + 4 * n};
    Link *own = malloc(n_links * sizeof(Link));
    Keys *keys = malloc(n_links * sizeof(Keys));
    for (int64_t i = 0; i < n; i++) on.rows[i] = i, on.total[i] = 0, on.log_left[i] = 0, on.left[i] = 1;
    memset(mix, 0, n * D * sizeof(float));
    memcpy(inner, x, n * D * sizeof(float));

    int64_t r = 0;
    for (; r < n_rounds; r++) {
        const Link *links = all + r * n_links;
        if (r) {
            if (rule->kind == STICK)
                stick_halt(rule->stick, states, on.n, NULL, rule->enough, on.log_left, on.left, mix, on.next, inner, n_threads);
            if (rule->kind == ENDS)
                for (int64_t i = 0; i < on.n; i++) on.next[i] = rule->ends[on.rows[i]] > r;
            halt(rule, &on, &off, y, D);
            memcpy(inner, states, on.n * D * sizeof(float));
            for (int64_t i = 0; i < on.n && links->added; i++)
                add_row(1, links->added + on.rows[i] * links->added_stride, inner + i * D, D);
        }
        if (!on.n) break;
        n_halted[r] = off.n;
        for (int64_t i = 0; i < n_links; i++) {
            own[i] = links[i];
            if (!links[i].attention) continue;
            keys[i] = *links[i].keys;
            keys[i].rows = on.n < n ? on.rows : NULL;
            own[i].keys = keys + i;
        }
        if (rule->kind == ACT) {
            const int is_last = rule->forces_remainder && r == n_rounds - 1;
            act_enter(rule->act, inner, on.n, NULL, rule->enough, is_last, on.total, on.weight, on.next);
        }
        const int shows_mean = rule->kind == STICK && r; /* so far, and what is left of it as it stands */
        for (int64_t i = 0; i < on.n && shows_mean; i++) {
            memcpy(shown + i * D, mix + i * D, D * sizeof(float));
            add_row(on.left[i], inner + i * D, shown + i * D, D);
        }
        chain(own, n_links, &none, inner, shows_mean ? shown : NULL, states, work, on.n, D, n_threads);
        if (rule->kind == ACT) act_after(on.weight, NULL, NULL, rule->interpolates, states, mix, on.n, D);
    }
    for (; r < n_rounds; r++) n_halted[r] = off.n;
    for (int64_t i = 0; i < on.n; i++) {
        float *to = y + on.rows[i] * D;
        memcpy(to, (rule->kind == ENDS ? states : mix) + i * D, D * sizeof(float));
        if (rule->kind == STICK) add_row(on.left[i], states + i * D, to, D);
    }
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (int64_t i = 0; i < n; i++) finish(last, y + i * D, y + i * D, 1, D);
    append_halted(all, n_links, n_rounds, n_halted, &off, inner, D, n_threads);
    free(keys), free(own), free(on.next), free(places), free(numbers);
}
