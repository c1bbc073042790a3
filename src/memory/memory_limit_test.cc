// SPDX-License-Identifier: Apache-2.0
#include "memory/memory_limit.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "support/memory_fs.h"

namespace pointsman {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

struct Machine {
  testing::MemoryFs fs;
  void file(const std::string& path, std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    fs.put("/machine" + path, {bytes.begin(), bytes.end()});
  }
  MemoryLimits read() { return read_memory_limits(fs, "/machine"); }
  void memory(std::string_view available_kib) {
    file("/proc/meminfo",
         "MemTotal:       24683652 kB\nMemFree:         1000 kB\nMemAvailable:   " + std::string(available_kib) + " kB\n");
  }
  void v1(const std::string& directory, std::string_view limit, std::string_view usage) {
    file(directory + "/memory.limit_in_bytes", limit);
    file(directory + "/memory.usage_in_bytes", usage);
  }
  void v2(const std::string& directory, std::string_view limit, std::string_view usage) {
    file(directory + "/memory.max", limit);
    file(directory + "/memory.current", usage);
  }
};

constexpr const char* kV1Mounts =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";
constexpr const char* kV2Mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(MemoryLimit, NothingKnownIsNoLimitAndASmallDefault) {
  Machine m;
  const MemoryLimits limits = m.read();
  EXPECT_FALSE(limits.available_bytes);
  EXPECT_FALSE(limits.container_room_bytes());
  EXPECT_EQ(default_budget_bytes(limits), kGiB);
}

TEST(MemoryLimit, WithoutAContainerMemAvailableCounts) {
  Machine m;
  m.memory("10485760");
  m.file("/proc/self/cgroup", "0::/init.scope\n");
  m.file("/proc/self/mountinfo", kV2Mounts);
  const MemoryLimits limits = m.read();
  EXPECT_EQ(limits.available_bytes, 10 * kGiB);
  EXPECT_FALSE(limits.container_limit_bytes);
  EXPECT_EQ(default_budget_bytes(limits), 8 * kGiB);
}

TEST(MemoryLimit, V2FindsTheTightestLevelUpTheTree) {
  Machine m;
  m.memory("104857600");
  m.file("/proc/self/cgroup", "0::/a/b/c\n");
  m.file("/proc/self/mountinfo", kV2Mounts);
  m.v2("/sys/fs/cgroup/a", "8589934592\n", "6442450944\n");  // leaves 2 GiB
  m.v2("/sys/fs/cgroup/a/b", "max\n", "0\n");
  m.v2("/sys/fs/cgroup/a/b/c", "4294967296\n", "1073741824\n");  // leaves 3 GiB
  const MemoryLimits limits = m.read();
  EXPECT_EQ(limits.container_limit_bytes, 8 * kGiB);
  EXPECT_EQ(limits.container_room_bytes(), 2 * kGiB);
  EXPECT_EQ(limits.container_path, "/machine/sys/fs/cgroup/a");
  EXPECT_EQ(default_budget_bytes(limits), 2 * kGiB / 5 * 4);
}

TEST(MemoryLimit, PageCacheYields) {
  Machine m;
  m.file("/proc/self/cgroup", "0::/a\n");
  m.file("/proc/self/mountinfo", kV2Mounts);
  m.v2("/sys/fs/cgroup/a", "4294967296\n", "4294967296\n");
  m.file("/sys/fs/cgroup/a/memory.stat", "anon 5\nactive_file 1073741824\nworkingset_x 1\ninactive_file 2147483648\n");
  EXPECT_EQ(m.read().container_room_bytes(), 3 * kGiB);
}

TEST(MemoryLimit, V2HighCountsLikeMax) {
  Machine m;
  m.file("/proc/self/cgroup", "0::/a\n");
  m.file("/proc/self/mountinfo", kV2Mounts);
  m.v2("/sys/fs/cgroup/a", "max\n", "0\n");
  m.file("/sys/fs/cgroup/a/memory.high", "1073741824\n");
  EXPECT_EQ(m.read().container_limit_bytes, kGiB);
}

TEST(MemoryLimit, V1HugeNumberIsNone) {
  Machine m;
  m.file("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/job\n0::/\n");
  m.file("/proc/self/mountinfo", kV1Mounts);
  m.v1("/sys/fs/cgroup/memory/job", "9223372036854771712\n", "1000\n");
  EXPECT_FALSE(m.read().container_limit_bytes);
  m.v1("/sys/fs/cgroup/memory/job", "2147483648\n", "1073741824\n");
  m.file("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 536870912\n");
  EXPECT_EQ(m.read().container_room_bytes(), kGiB + kGiB / 2);
}

TEST(MemoryLimit, V1TogetherWithOtherControllers) {
  Machine m;
  m.file("/proc/self/cgroup", "3:cpu,memory:/job\n");
  m.file("/proc/self/mountinfo", "35 31 0:32 / /cg rw - cgroup none rw,cpu,memory\n");
  m.v1("/cg/job", "1073741824", "0");
  EXPECT_EQ(m.read().container_limit_bytes, kGiB);
}

TEST(MemoryLimit, ContainersPartOfTheTreeMountedAsRoot) {
  Machine m;
  m.file("/proc/self/cgroup", "4:memory:/docker/abc/inner\n");
  m.file("/proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  m.v1("/sys/fs/cgroup/memory", "1073741824\n", "0\n");
  m.v1("/sys/fs/cgroup/memory/inner", "536870912\n", "0\n");
  EXPECT_EQ(m.read().container_limit_bytes, kGiB / 2);
  // A namespace that hides the path: the mount itself is all there is.
  m.file("/proc/self/cgroup", "4:memory:/docker/abcdef\n");
  EXPECT_EQ(m.read().container_limit_bytes, kGiB);
}

TEST(MemoryLimit, BlanksInMountPoints) {
  Machine m;
  m.file("/proc/self/cgroup", "0::/\n");
  m.file("/proc/self/mountinfo", "30 23 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n");
  m.v2("/my groups", "1073741824", "0");
  EXPECT_EQ(m.read().container_limit_bytes, kGiB);
}

TEST(MemoryLimit, MoreInUseThanTheLimitLeavesNothing) {
  Machine m;
  m.memory("1048576");
  m.file("/proc/self/cgroup", "0::/a\n");
  m.file("/proc/self/mountinfo", kV2Mounts);
  m.v2("/sys/fs/cgroup/a", "1000000", "2000000");
  EXPECT_EQ(m.read().container_room_bytes(), 0u);
  EXPECT_EQ(default_budget_bytes(m.read()), 0u);
}

TEST(MemoryLimit, NonsenseIsIgnored) {
  Machine m;
  m.file("/proc/meminfo", "MemAvailable: lots kB\nMemAvailable");
  m.file("/proc/self/cgroup", "::\n\nx\n0:\n0::\n:memory");
  m.file("/proc/self/mountinfo", " - \n - cgroup2\n1 2 3 - cgroup2 x y\n1 2 3 / /m - cgroup2 x\n");
  m.v2("/m", "twelve", "-1");
  EXPECT_FALSE(m.read().container_limit_bytes);
  EXPECT_FALSE(m.read().available_bytes);
}

TEST(MemoryLimit, ResidentSet) {
  Machine m;
  m.file("/proc/self/status", "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n");
  EXPECT_EQ(current_rss_bytes(m.fs, "/machine"), 1u << 20);
  EXPECT_EQ(peak_rss_bytes(m.fs, "/machine"), 2u << 20);
}

TEST(MemoryLimit, ThisMachineAnswers) {
  const uint64_t before = current_rss_bytes();
  EXPECT_GT(before, 0u);
  constexpr size_t kBytes = size_t{64} << 20;
  auto block = std::make_unique<char[]>(kBytes);
  std::memset(block.get(), 1, kBytes);
  EXPECT_GT(current_rss_bytes(), before + kBytes / 2);
  EXPECT_GE(peak_rss_bytes(), current_rss_bytes());
  EXPECT_TRUE(read_memory_limits().available_bytes);
  EXPECT_GT(default_budget_bytes(), 0u);
}

}  // namespace
}  // namespace pointsman
