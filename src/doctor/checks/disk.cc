// SPDX-License-Identifier: Apache-2.0
//
// The disk under the model: measured on a live machine, as recorded in a capture.
#include "doctor/disk_probe.h"

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr uint64_t kMi = 1024 * 1024;
// Below this a rate says more about caches of the host than about the disk.
constexpr uint64_t kTellingBytes = 256 * kMi;
constexpr double kSlowGbps = 0.2;

// The largest file of the folder that holds weights.
std::string largest_file(const std::string& folder) {
  std::string best;
  uint64_t size = 0;
  const auto names = FileSystem::real().list(folder);
  if (!names.ok()) return {};
  for (const std::string& name : *names) {
    const auto info = FileSystem::real().stat(join_path(folder, name));
    if (!info.ok() || !info->is_regular || info->size_bytes <= size) continue;
    best = join_path(folder, name);
    size = info->size_bytes;
  }
  return best;
}

bool is_network(const std::string& type) {
  return type.starts_with("nfs") || type.starts_with("smb") || type == "cifs" || type == "9p" ||
         type.starts_with("fuse.sshfs") || type == "ceph" || type.starts_with("fuse.s3") || type == "fuse.gcsfuse" ||
         type == "fuse.rclone" || type == "afs";
}

std::string rate(const DiskSample* s) {
  return s != nullptr ? format("{:.2f}", s->gbps) : "-";
}

CheckResult judge(const DiskReport& d) {
  const double sequential = std::max(d.best_gbps(false, false), d.best_gbps(false, true));
  const double buffered = d.best_gbps(true, false), direct = d.best_gbps(true, true);
  CheckResult r = CheckResult::ok(format("{}: sequential {:.2f} GB/s, random {:.2f} buffered, {} O_DIRECT",
                                         d.fs_type.empty() ? "file system" : d.fs_type, sequential, buffered,
                                         d.has_direct ? format("{:.2f}", direct) : "no"));
  r.data = disk_json(d);
  r.evidence.push_back(format("{} ({}){}{}", printable(d.path, 160), human_bytes(static_cast<double>(d.file_bytes)),
                              d.rotational == 1 ? ", a rotating disk as the kernel sees it (virtual ones often say so)" : "",
                              d.read_ahead_kb >= 0 ? format(", read-ahead {} KiB", d.read_ahead_kb) : ""));
  for (const uint64_t size : {64 * uint64_t{1024}, kMi, 4 * kMi}) {
    if (d.find(true, false, size, 1) == nullptr && d.find(true, true, size, 1) == nullptr) continue;
    r.evidence.push_back(format("random {:>4} KiB, GB/s: buffered {} (1 in flight) {} (4), O_DIRECT {} (1) {} (4)", size / 1024,
                                rate(d.find(true, false, size, 1)), rate(d.find(true, false, size, 4)),
                                rate(d.find(true, true, size, 1)), rate(d.find(true, true, size, 4))));
  }
  std::string reader = format("the expert store reads with {} (POINTSMAN_IO), past the page cache where memory is short and a measurement says so (--direct)",
                              d.has_uring ? "io_uring" : "pread");
  const DiskSample *b = d.find(true, false, kMi, 4), *o = d.find(true, true, kMi, 4);
  if (b != nullptr && o != nullptr && b->gbps > 0)
    reader += format("; past it, 1 MiB reads run at {:.2f} of that", o->gbps / b->gbps);
  r.evidence.push_back(reader + (d.has_uring ? "; io_uring is allowed here" : "; io_uring is not allowed here"));
  if (d.file_bytes < kTellingBytes) r.evidence.push_back("a small file: the host's caches answer, the disk may be slower");
  if (is_network(d.fs_type)) {
    r.warn("disk.network",
           format("the model lies on {} ({}): every miss is a round trip, and a lost connection stops the engine", d.fs_type,
                  d.mount),
           "copy the model to a local disk, then 'pointsman lock MODEL --check'");
  }
  if (!d.samples.empty() && sequential < kSlowGbps) {
    r.warn("disk.slow",
           format("sequential reads at {:.0f} MB/s: loading 10 GiB takes {:.0f} s", sequential * 1000,
                  sequential > 0 ? 10.737 / sequential : 0),
           "put the model on an NVMe disk, or give a budget that holds it and load once");
  } else if (b != nullptr && std::max(buffered, direct) < 0.25 * sequential) {
    r.warn("disk.random_slow",
           format("random reads reach {:.2f} GB/s of {:.2f} sequential: experts on demand are random",
                  std::max(buffered, direct), sequential),
           "an SSD; or a --memory that keeps more experts resident");
  }
  return r;
}

}  // namespace

CheckResult check_disk(const Context& context) {
  const Options& o = context.options;
  if (o.model.empty()) {
    const Json* recorded = context.machine.notes().find("disk");
    if (recorded == nullptr || recorded->is_null()) return CheckResult::not_applicable("no MODEL");
    const Result<DiskReport> d = parse_disk_json(*recorded);
    return d.ok() ? judge(*d) : CheckResult::not_applicable(d.status().message());
  }
  // MODEL is a folder of this machine, whatever machine is looked at otherwise.
  const std::string file = largest_file(o.model);
  if (file.empty()) return CheckResult::not_applicable("no file in MODEL");
  Result<DiskReport> d = probe_disk(file, o.deep);
  if (!d.ok()) {
    CheckResult r = CheckResult::ok(printable(file, 200));
    r.fail("disk.unreadable", d.status().message(), "check the file's permissions and the disk's health (dmesg)");
    return r;
  }
  char resolved[PATH_MAX];
  if (::realpath(file.c_str(), resolved) != nullptr) {
    std::string mounts;
    const auto opened = FileSystem::real().open("/proc/self/mountinfo");
    std::string chunk(1 << 16, '\0');
    while (opened.ok() && mounts.size() < (size_t{4} << 20)) {
      const auto n = (*opened)->pread(std::as_writable_bytes(std::span(chunk)), mounts.size());
      if (!n.ok() || *n == 0) break;
      mounts.append(chunk, 0, *n);
    }
    const Mount m = mount_of(mounts, resolved);
    d->fs_type = m.type;
    d->mount = m.point;
  }
  return judge(*d);
}

}  // namespace pointsman::doctor
