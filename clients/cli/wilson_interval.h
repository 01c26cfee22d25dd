// How sure a share of hits is.
#ifndef LSSAR_CLIENTS_CLI_WILSON_INTERVAL_H_
#define LSSAR_CLIENTS_CLI_WILSON_INTERVAL_H_

namespace lssar::cli {

struct Interval {
  double low = 0;
  double high = 1;
};

// 95% score interval of a binomial share: in [0, 1] and not empty even at 0 or all hits, where the
// normal approximation claims certainty.
// Requires  0 <= num_hits <= num_trials; no trials: [0, 1]
// Source    E. B. Wilson, JASA 22 (1927) 209
Interval WilsonInterval(int num_hits, int num_trials);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_WILSON_INTERVAL_H_
