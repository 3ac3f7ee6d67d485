/* Sub-layers of one new position a sentence: what they are made of, and what runs them (`sub_layers.c`). */

#ifndef OSTINATO_SUB_LAYERS_H
#define OSTINATO_SUB_LAYERS_H

#include "attention.h"
#include "experts.h"

enum { LAYER_NORM = 0, RMS_NORM = 1 };

typedef struct {
    const float *weight, *bias; /* [D], or NULL */
    int64_t width;              /* 0: no norm at all */
    float eps;
    int32_t kind, is_before;
} Norm;

/* With a route, queries and output, up and down are those of experts, [E, D, F]. */
typedef struct {
    Norm norm;
    const Route *route;
    Matrix queries, keys_values, output; /* keys_values of no outputs: they are made elsewhere */
} Attention;

typedef struct {
    Norm norm;
    const Route *route;
    Matrix up, down;
    int64_t activation;
} FeedForward;

typedef struct {
    const Attention *attention; /* or NULL */
    const FeedForward *feed_forward;
    const Keys *keys;     /* of attention */
    const float *added;   /* to the states before it, [n, D], or the same to all, [D]; or NULL */
    int64_t added_stride; /* D or 0 */
} Link;

void few_rows(const Matrix *m, const float *x, float *y, int64_t n, int64_t n_threads);
const float *entered(const Norm *norm, const float *x, int64_t n, int64_t D, float *room);
void finish(const Norm *last, const float *x, float *y, int64_t n, int64_t D);
void chain(const Link *links, int64_t n_links, const Norm *last, const float *x, const float *shown, float *y, float *work,
           int64_t n, int64_t D, int64_t n_threads);

#endif
