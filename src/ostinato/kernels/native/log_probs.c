/* What a search asks of the logits of rows: the logarithm of their summed exponentials, and the highest sums. */

#include "vectors.h"

/* y = added - log sum_v e^x_v of every row, where that is max x + log sum_v e^(x_v - max x); NaN of a row that has one.
 * Then x = -inf in the columns `never`. */
void log_probs(float *x, const float *added, float *y, int64_t n_rows, int64_t n_columns, const int64_t *never, int64_t n_never,
               int64_t n_threads) {
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (int64_t row = 0; row < n_rows; row++) {
        float *from = x + row * n_columns, top = top_of(from, n_columns);
        double all = 0; /* of many numbers: parts of them are added up by vectors, and these in double precision */
        int64_t i = 0;
        while (i + LANES <= n_columns) {
            const int64_t end = i + 256 * LANES < n_columns ? i + 256 * LANES : n_columns;
            vec sums = {0};
            for (; i + LANES <= end; i += LANES) sums += exp_below_zero(load(from + i) - top);
            all += sum_lanes(sums);
        }
        for (; i < n_columns; i++) all += expf(from[i] - top);
        y[row] = (float)(added[row] - (top + log(all)));
        for (i = 0; i < n_never; i++) from[never[i]] = -INFINITY;
    }
}

INLINE int is_any(ivec mask) {
    union {
        ivec whole;
        int64_t parts[LANES / 2];
    } found = {mask};
    int64_t any = 0;
    for (int i = 0; i < LANES / 2; i++) any |= found.parts[i];
    return any != 0;
}

/* NaN is higher than any number, as in torch. */
INLINE int is_higher(float a, float b) { return a > b || (a != a && b == b); }

/* Put a number where it belongs among the n highest so far, behind its equals; the last one goes. */
static void insert(float value, int64_t place, float *values, int64_t *places, int64_t n) {
    int64_t i = n - 1;
    for (; i > 0 && is_higher(value, values[i - 1]); i--) values[i] = values[i - 1], places[i] = places[i - 1];
    values[i] = value, places[i] = place;
}

/* The n highest of all x + a of every row, highest first, and the parts and columns in which they are. A row is n_parts parts with
 * an a of its own each, n <= n_parts n_columns. A single part is ranked before a is added: sums may be equal where numbers are
 * not. Few numbers are higher than the n-th highest of those before them, so most are looked at by vectors only. */
void highest(const float *x, const float *added, int64_t n_rows, int64_t n_parts, int64_t n_columns, int64_t n, float *values,
             int64_t *parts, int64_t *columns, int64_t n_threads) {
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (int64_t row = 0; row < n_rows; row++) {
        float *best = values + row * n;
        int64_t *at = columns + row * n, *in = parts + row * n, n_found = 0;
        for (int64_t part = 0; part < n_parts; part++) {
            const float *from = x + (row * n_parts + part) * n_columns, a = n_parts > 1 ? added[row * n_parts + part] : 0;
            const int64_t start = part * n_columns;
            int64_t i = 0;
            for (; i < n_columns && n_found < n; i++, n_found++) insert(from[i] + a, start + i, best, at, n_found + 1);
            for (; i + 4 * LANES <= n_columns; i += 4 * LANES) {
                const vec least = (vec){0} + best[n - 1];
                const ivec first = (load(from + i) + a <= least) & (load(from + i + LANES) + a <= least);
                const ivec second = (load(from + i + 2 * LANES) + a <= least) & (load(from + i + 3 * LANES) + a <= least);
                if (is_any(~(first & second)))
                    for (int64_t j = i; j < i + 4 * LANES; j++)
                        if (is_higher(from[j] + a, best[n - 1])) insert(from[j] + a, start + j, best, at, n);
            }
            for (; i < n_columns; i++)
                if (is_higher(from[i] + a, best[n - 1])) insert(from[i] + a, start + i, best, at, n);
        }
        for (int64_t i = 0; i < n; i++) {
            in[i] = at[i] / n_columns, at[i] -= in[i] * n_columns;
            if (n_parts == 1) best[i] += added[row];
        }
    }
}
