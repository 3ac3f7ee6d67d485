/* c (+)= a b + bias of many rows: a [N, D], b [D, F], c [N, F], as they lie or transposed; or such products of groups of
 * rows, one of them an expert's.
 *
 * b is copied, some rows at a time, into panels as wide as a tile, one behind the other, which threads share: what a tile
 * reads of it lies together. Every thread takes blocks of rows of a; where a is transposed it copies those, too. (Blocks
 * for each cache: Goto and van de Geijn 2008.) A number is one sum over D in parts of DEPTH, in one order, whatever the
 * number of threads. */

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "tiles.h"

#define PANEL (TILE_VECS * LANES) /* columns */
#define DEPTH 256                 /* rows of b at a time: a panel has 48 KiB with AVX-512, the L1 cache of Zen 5 */
#define MOST_PANELS 64            /* at a time: some megabytes */
#define BLOCK_ROWS (8 * TILE_ROWS)
#define BLOCK_PANELS 4

typedef struct {
    const float *a, *b, *bias; /* bias: [F], or NULL */
    float *c;
    int64_t n_rows, n_columns, n; /* N, F, D */
    int64_t a_row, a_column, b_row, b_column, c_row; /* steps, in numbers; of a and b one is 1 */
    int32_t adds;
    int32_t is_transposed; /* a is, and what `a_index` names are its columns */
    /* NULL, but in groups */
    const int64_t *a_index; /* which rows of a (columns, transposed) these are */
    const int64_t *b_index; /* which rows of b; then b_column is 1 */
    const float *weights;   /* [D]: what rows of b are multiplied by; then b_column is 1 */
    float *sums;            /* [F]: sums of the rows of b, so weighted */
} Product;

static __attribute__((noinline)) void any_tile(int vecs, int rows, int64_t columns, int64_t n, const float *a,
                                               const int64_t *index, int64_t a_row, int64_t a_column, const float *b,
                                               float *c, int64_t c_row, int mode, const float *bias) {
    /* Steps that are known to the compiler, and whole tiles apart from edges. */
#define TILE(v, r, f, row, column) tile(v, r, f, n, a, index, row, column, b, PANEL, c, c_row, mode, bias)
    const int is_whole = rows == TILE_ROWS && columns == vecs * LANES;
    if (vecs == 3 && is_whole && a_column == 1) TILE(3, TILE_ROWS, PANEL, a_row, 1);
    else if (vecs == 3 && is_whole) TILE(3, TILE_ROWS, PANEL, 1, TILE_ROWS);
    else if (vecs == 3 && a_column == 1) TILE(3, rows, columns, a_row, 1);
    else if (vecs == 3) TILE(3, rows, columns, 1, TILE_ROWS);
    else if (vecs == 2 && a_column == 1) TILE(2, rows, columns, a_row, 1);
    else if (vecs == 2) TILE(2, rows, columns, 1, TILE_ROWS);
    else if (a_column == 1) TILE(1, rows, columns, a_row, 1);
    else TILE(1, rows, columns, 1, TILE_ROWS);
}

/* Copy columns of b, rows `first` to before first + n, into panels, zeros behind the last column. What lies together is
 * read together. */
static void copy_panels(const Product *p, int64_t first, int64_t n, int64_t column, int64_t columns, float *y) {
    const float *b = p->b + column * p->b_column;
    const int64_t whole_panels = columns / PANEL * PANEL;
    if (p->b_column != 1) {
        for (int64_t i = 0; i < columns; i += PANEL) {
            if (i == whole_panels) memset(y + i * DEPTH, 0, n * PANEL * sizeof(float));
            transpose(b + first + i * p->b_column, p->b_column, least(columns - i, PANEL), n, y + i * DEPTH, PANEL);
        }
        return;
    }
    float *sums = p->sums ? p->sums + column : NULL;
    if (sums && !first) memset(sums, 0, columns * sizeof(float));
    for (int64_t s = 0; s < n; s++, y += PANEL) {
        const float *row = b + (p->b_index ? p->b_index[first + s] : first + s) * p->b_row;
        const float weight = p->weights ? p->weights[first + s] : 1;
        int64_t i = 0;
        for (; i < whole_panels; i += PANEL)
            for (int j = 0; j < PANEL; j += LANES) store(y + i * DEPTH + j, weight * load(row + i + j));
        if (i < columns) {
            memset(y + i * DEPTH, 0, PANEL * sizeof(float));
            for (int64_t j = 0; j < columns - i; j++) y[i * DEPTH + j] = weight * row[i + j];
        }
        if (sums)
            for (i = 0; i < columns; i++) sums[i] += weight * row[i];
    }
}

/* Copy rows of a transposed a, columns `first` to before first + n, for every tile [n, TILE_ROWS]. What lies together is
 * read together; of a whole tile the inner bound is known to the compiler. */
static void copy_rows_of_tiles(const Product *p, int64_t row, int64_t rows, int64_t first, int64_t n, float *y) {
    for (int64_t s = 0; s < n; s++, y += TILE_ROWS) {
        const float *x = p->a + row + (p->a_index ? p->a_index[first + s] : first + s) * p->a_column;
        int64_t tile = 0;
        for (; tile + TILE_ROWS <= rows; tile += TILE_ROWS)
            for (int i = 0; i < TILE_ROWS; i++) y[tile * DEPTH + i] = x[tile + i];
        for (int64_t i = 0; i < rows - tile; i++) y[tile * DEPTH + i] = x[tile + i];
    }
}

/* Some panels of b, beginning with column `column`, and rows `first` to before first + n of b. */
typedef struct {
    const float *panels;
    int64_t column, columns, first, n;
} Part;

/* Some rows of c and some panels; of a transposed a the rows have been copied. */
static void block(const Product *p, const Part *part, int64_t row, int64_t first_panel, int64_t n_panels, const float *copied) {
    const int64_t rows = least(p->n_rows - row, BLOCK_ROWS);
    const int mode = part->first || p->adds ? ADD : REPLACE;
    const int64_t end = least((first_panel + n_panels) * PANEL, part->columns);
    for (int64_t column = first_panel * PANEL; column < end; column += PANEL) {
        const int64_t width = least(part->columns - column, PANEL), in_c = part->column + column;
        const float *bias = p->bias && !part->first ? p->bias + in_c : NULL;
        for (int64_t i = 0; i < rows; i += TILE_ROWS) {
            const float *left = p->a + part->first + (p->a_index ? 0 : row + i) * p->a_row;
            const int64_t *index = p->a_index ? p->a_index + row + i : NULL;
            if (p->is_transposed) left = copied + i * DEPTH, index = NULL;
            any_tile((int)(whole(width, LANES) / LANES), (int)least(rows - i, TILE_ROWS), width, part->n, left, index,
                     p->is_transposed ? 1 : p->a_row, p->is_transposed ? TILE_ROWS : 1, part->panels + column * DEPTH,
                     p->c + (row + i) * p->c_row + in_c, p->c_row, mode, bias);
        }
    }
}

static int64_t n_panels_at_a_time(const Product *p) { return least(whole(p->n_columns, PANEL) / PANEL, MOST_PANELS); }
static float *room_for_panels(const Product *p) {
    return aligned_alloc(64, n_panels_at_a_time(p) * PANEL * DEPTH * sizeof(float));
}

/* What every thread does of a product. */
static void share(const Product *p, float *panels, float *copied) {
    const int64_t most = n_panels_at_a_time(p) * PANEL;
    if (!p->n && !p->adds) { /* a sum of nothing */
#pragma omp for
        for (int64_t i = 0; i < p->n_rows; i++) memset(p->c + i * p->c_row, 0, p->n_columns * sizeof(float));
#pragma omp single
        if (p->sums) memset(p->sums, 0, p->n_columns * sizeof(float));
    }
    for (int64_t column = 0; column < p->n_columns; column += most)
        for (int64_t first = 0; first < p->n; first += DEPTH) {
            const Part part = {panels, column, least(p->n_columns - column, most), first, least(p->n - first, DEPTH)};
            const int64_t n_panels = whole(part.columns, PANEL) / PANEL;
            const int64_t n_across = whole(n_panels, BLOCK_PANELS) / BLOCK_PANELS, across = whole(n_panels, n_across) / n_across;
            const int64_t each = whole(n_panels, omp_get_num_threads()) / omp_get_num_threads() * PANEL;
#pragma omp for
            for (int64_t i = 0; i < part.columns; i += each)
                copy_panels(p, first, part.n, column + i, least(part.columns - i, each), panels + i * DEPTH);
            const int64_t n_down = whole(p->n_rows, BLOCK_ROWS) / BLOCK_ROWS;
            /* Blocks side by side go to one thread, which copies their rows once, where there are enough for all threads. */
            const int at_a_time = (int)(n_down < 2 * omp_get_num_threads() ? 1 : n_across);
            int64_t copied_row = -1; /* by this thread */
#pragma omp for schedule(dynamic, at_a_time)
            for (int64_t unit = 0; unit < n_down * n_across; unit++) {
                const int64_t row = unit / n_across * BLOCK_ROWS;
                if (p->is_transposed && row != copied_row)
                    copy_rows_of_tiles(p, row, least(p->n_rows - row, BLOCK_ROWS), first, part.n, copied);
                copied_row = row;
                block(p, &part, row, unit % n_across * across, across, copied);
            }
        }
}

/* Not 0: there is no memory for it. */
int64_t large_product(const Product *p, int64_t n_threads) {
    float *panels = room_for_panels(p);
    if (!panels) return 1;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        float copied[BLOCK_ROWS * DEPTH] __attribute__((aligned(64)));
        share(p, panels, copied);
    }
    free(panels);
    return 0;
}

/* Products of groups of places, group g of places ends[g - 1] to before ends[g]. By rows: rows of a and c are places, and
 * every group has a b and a bias of its own. By sums: rows of b and columns of a, which is transposed, are places, and
 * every group has a c and sums of its own. */
typedef struct {
    Product all; /* n_rows (by sums: n) and what points to a group's own are those of the first */
    const int32_t *ends;
    int64_t n_groups, b_group, c_group; /* steps from a group's own to the next */
    int32_t is_by_sums;
} GroupedProducts;

int64_t grouped_products(const GroupedProducts *p, int64_t n_threads) {
    float *panels = room_for_panels(&p->all);
    if (!panels) return 1;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        float copied[BLOCK_ROWS * DEPTH] __attribute__((aligned(64)));
        for (int64_t g = 0, start = 0; g < p->n_groups; start = p->ends[g++]) {
            Product one = p->all;
            const int64_t n = p->ends[g] - start;
            if (one.a_index) one.a_index += start;
            else one.a += start * (p->is_by_sums ? one.a_column : one.a_row);
            if (p->is_by_sums) {
                one.n = n;
                if (one.b_index) one.b_index += start;
                else one.b += start * one.b_row;
                if (one.weights) one.weights += start;
                one.c += g * p->c_group;
                if (one.sums) one.sums += g * one.n_columns;
            } else {
                one.n_rows = n;
                one.b += g * p->b_group;
                one.c += start * one.c_row;
                if (one.bias) one.bias += g * one.n_columns;
            }
            if (one.n_rows) share(&one, panels, copied);
        }
    }
    free(panels);
    return 0;
}

/* y[m] = <a[index m], b[m]>, rows of n numbers; index: NULL for a's own rows. */
void row_products(const float *a, int64_t a_row, const int64_t *index, const float *b, int64_t b_row, float *y, int64_t n_rows,
                  int64_t n, int64_t n_threads) {
#pragma omp parallel for num_threads(n_threads) if (n_threads > 1)
    for (int64_t m = 0; m < n_rows; m++) y[m] = dot(a + (index ? index[m] : m) * a_row, b + m * b_row, (int)n);
}
