/* The hand-written loop that a local step is measured against: one draw from an alias table, two dots, a logistic prox of
   three Newton steps, two axpys. `run_dense` and `run_sparse` do n_steps of them and return a number that depends on all. */
#include <math.h>
#include <stdint.h>

static inline uint64_t draw(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static inline int64_t pick(uint64_t z, int64_t n_rows, const uint32_t *threshold, const int32_t *alias) {
    int64_t column = (int64_t)(((z >> 32) * (uint64_t)n_rows) >> 32);
    return (uint32_t)z < threshold[column] ? column : alias[column];
}

static inline double prox(double r, double c, double t) {
    double p = 0.0;
    for (int step = 0; step < 3; ++step) {
        double small = exp(-fabs(t));
        double ratio = 1.0 / (1.0 + small);
        p = t >= 0.0 ? small * ratio : ratio;
        t -= (t - c * p - r) / (1.0 + c * small * ratio * ratio);
    }
    return p;
}

static inline void finish(double *tip, double margin, double b, double h, double mix, double *to_mean, double *to_lag) {
    double at_v = tip[0] + 0.5 * tip[1];
    double zeta = at_v + h * (margin - 4.0 * (tip[0] - 0.5 * tip[1]));
    double change = -b * prox(b * zeta / h, 1.0 / h - 4.0, b * margin) - at_v;
    *to_mean = 0.5 * (1.0 + mix) * change;
    *to_lag = (1.0 - mix) * change;
    tip[0] += *to_mean;
    tip[1] += *to_lag;
}

double run_dense(int64_t n_steps, int64_t n_rows, int64_t d, const double *X, const double *y, double *tips, double *mean,
                 double *lag, const uint32_t *threshold, const int32_t *alias, double h, double mix, double decay, uint64_t seed) {
    uint64_t state = seed;
    double scale = 1.0;
    for (int64_t step = 0; step < n_steps; ++step) {
        int64_t j = pick(draw(&state), n_rows, threshold, alias);
        const double *x = X + j * d;
        double along_mean = 0.0, along_lag = 0.0, to_mean, to_lag;
        for (int64_t k = 0; k < d; ++k) {
            along_mean += x[k] * mean[k];
            along_lag += x[k] * lag[k];
        }
        finish(tips + 2 * j, along_mean - 0.5 * along_lag, y[j], h, mix, &to_mean, &to_lag);
        for (int64_t k = 0; k < d; ++k) {
            mean[k] -= to_mean * x[k];
            lag[k] -= to_lag * x[k];
        }
        scale *= decay;
    }
    return mean[0] + scale;
}

double run_sparse(int64_t n_steps, int64_t n_rows, const double *data, const int32_t *indices, const int32_t *indptr,
                  const double *y, double *tips, double *mean, double *lag, const uint32_t *threshold, const int32_t *alias,
                  double h, double mix, double decay, uint64_t seed) {
    uint64_t state = seed;
    double scale = 1.0;
    for (int64_t step = 0; step < n_steps; ++step) {
        int64_t j = pick(draw(&state), n_rows, threshold, alias);
        double along_mean = 0.0, along_lag = 0.0, to_mean, to_lag;
        for (int32_t k = indptr[j]; k < indptr[j + 1]; ++k) {
            along_mean += data[k] * mean[indices[k]];
            along_lag += data[k] * lag[indices[k]];
        }
        finish(tips + 2 * j, along_mean - 0.5 * along_lag, y[j], h, mix, &to_mean, &to_lag);
        for (int32_t k = indptr[j]; k < indptr[j + 1]; ++k) {
            mean[indices[k]] -= to_mean * data[k];
            lag[indices[k]] -= to_lag * data[k];
        }
        scale *= decay;
    }
    return mean[0] + scale;
}
