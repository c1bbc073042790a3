// SPDX-License-Identifier: Apache-2.0
//
// audit_bench PATH [REPEATS]: speed of `pointsman audit` on a tree with one thread, all rules on. Processor time, because the machine may
// be shared; the median of the repeats.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "audit/audit.h"

namespace pm = pointsman;

namespace {

double cpu_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(u.ru_utime) + seconds(u.ru_stime);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: audit_bench PATH [REPEATS]\n"), 2;
  const int repeats = argc > 2 ? std::max(1, std::atoi(argv[2])) : 5;
  pm::audit::AuditOptions options;
  options.num_threads = 1;
  std::vector<double> seconds;
  pm::audit::AuditSummary summary;
  for (int i = 0; i < repeats; ++i) {
    const double start = cpu_seconds();
    const auto result = pm::audit::audit(pm::FileSystem::real(), argv[1], options);
    seconds.push_back(cpu_seconds() - start);
    if (!result.ok()) return std::fprintf(stderr, "audit_bench: %s\n", result.status().to_string().c_str()), 1;
    summary = result->summary;
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2], mb = static_cast<double>(summary.bytes) / 1e6;
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  std::printf("%zu files, %.2f MB, %llu lines: %.3f s of one core (%.3f to %.3f), %.2f MB/s; peak RSS %.0f MiB\n", summary.files, mb, static_cast<unsigned long long>(summary.lines), median, seconds.front(),
              seconds.back(), mb / median, static_cast<double>(u.ru_maxrss) / 1024);
  return 0;
}
