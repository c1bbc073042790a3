// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "doctor/hccl_buffer.h"
#include "doctor/rank_table.h"

namespace pointsman::doctor {
namespace {

std::vector<std::string> codes(const RankTable& table) {
  std::vector<std::string> out;
  for (const RankFault& f : table.faults) out.push_back(f.code);
  return out;
}

TEST(RankTable, Version1WithTwoServers) {
  const auto table = parse_rank_table(R"({"version": "1.0", "server_count": "2", "status": "completed", "server_list": [
    {"server_id": "10.0.0.11", "device": [{"device_id": "0", "device_ip": "192.168.1.1", "rank_id": "0"}, {"device_id": "1", "device_ip": "192.168.1.2", "rank_id": "1"}]},
    {"server_id": "10.0.0.12", "device": [{"device_id": "0", "device_ip": "192.168.1.3", "rank_id": "2"}, {"device_id": "1", "device_ip": "192.168.1.4", "rank_id": "3"}]}]})");
  ASSERT_TRUE(table.ok());
  EXPECT_TRUE(table->faults.empty());
  ASSERT_EQ(table->ranks.size(), 4u);
  EXPECT_EQ(table->ranks[2].server, "10.0.0.12");
  EXPECT_EQ(table->ranks[3].device, 1);
}

TEST(RankTable, Version2HasNumbersAndNoServers) {
  const auto table = parse_rank_table(
      R"({"version": "2.0", "rank_count": 2, "rank_list": [{"rank_id": 1, "local_id": 1, "device_id": 1}, {"rank_id": 0, "local_id": 0, "device_id": 0}]})");
  ASSERT_TRUE(table.ok());
  EXPECT_TRUE(table->faults.empty());
  ASSERT_EQ(table->ranks.size(), 2u);
  EXPECT_EQ(table->ranks[0].rank, 0);
}

TEST(RankTable, EveryFaultHasItsName) {
  const auto table = parse_rank_table(R"({"version": "1.0", "server_count": "3", "status": "initializing", "server_list": [
    {"server_id": "a", "device": [{"device_id": "0", "device_ip": "1.1.1.1", "rank_id": "0"}, {"device_id": "0", "device_ip": "1.1.1.1", "rank_id": "2"}, {"device_id": "3"}]},
    {"server_id": "b", "device": [{"device_id": "0", "rank_id": "2"}]}]})");
  ASSERT_TRUE(table.ok());
  const std::vector<std::string> found = codes(*table);
  for (const char* code : {"count", "not_completed", "no_rank_id", "duplicate_rank", "rank_gap", "duplicate_device",
                           "duplicate_ip", "uneven_servers", "no_device_ip"}) {
    EXPECT_NE(std::find(found.begin(), found.end(), code), found.end()) << code;
  }
}

TEST(RankTable, NumbersBeyondAnyClusterAreFaults) {
  const auto table = parse_rank_table(
      R"({"rank_list": [{"rank_id": 9223372036854775807, "device_id": 0}, {"rank_id": 0, "device_id": "9223372036854775807"}]})");
  ASSERT_TRUE(table.ok());
  ASSERT_EQ(table->ranks.size(), 1u);
  EXPECT_EQ(table->ranks[0].device, -1);
  EXPECT_EQ(codes(*table), (std::vector<std::string>{"no_rank_id", "no_device_id"}));
}

TEST(RankTable, WhatIsNoneIsRefused) {
  EXPECT_EQ(parse_rank_table("rank 0").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(parse_rank_table("[]").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(parse_rank_table("{}").status().code(), StatusCode::kUnsupported);
}

TEST(Hostfile, SlotsAndComments) {
  const auto table = parse_hostfile("# two hosts\nnode1 slots=2 max_slots=4\nnode2:2\n\nfe80::1 slots=1\n");
  ASSERT_TRUE(table.ok());
  EXPECT_TRUE(table->faults.empty());
  ASSERT_EQ(table->ranks.size(), 5u);
  EXPECT_EQ(table->ranks[3].server, "node2");
  EXPECT_EQ(table->ranks[3].device, 1);
  EXPECT_EQ(table->ranks[4].server, "fe80::1");
}

TEST(Hostfile, AHostTwiceGivesADeviceTwoRanks) {
  const auto table = parse_hostfile("node1 slots=2\nnode1 slots=2\nnode2 slots=many\nnode3 slots=99999999\n");
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(codes(*table),
            (std::vector<std::string>{"duplicate_server", "slots", "slots", "duplicate_device", "duplicate_device"}));
}

// By hand, from the documented formulas; MB of 2^20 bytes.
TEST(HcclBuffer, Formulas) {
  // A3: 16 local experts; row 14400 -> 14848; 2 * (16 * 512 * 16 * 14848 + 8 * 512 * 14336) = 4009754624.
  auto need = hccl_buffer_need({.experts = 256, .ep = 16, .batch = 512, .hidden = 7168, .top_k = 8, .family = "A3"});
  ASSERT_TRUE(need.ok());
  EXPECT_EQ(need->bytes, 4009754624u);
  EXPECT_EQ(need->megabytes, 3824u);
  // fullmesh_v2: ceil(14400 / 480) * 512 = 15360; 2 * (131072 * 15360 + 9 * 512 * 14336) with one shared expert.
  need = hccl_buffer_need({.experts = 256,
                           .ep = 16,
                           .batch = 512,
                           .hidden = 7168,
                           .top_k = 8,
                           .shared_experts = 1,
                           .family = "a3",
                           .comm_alg = "fullmesh_v2"});
  ASSERT_TRUE(need.ok());
  EXPECT_EQ(need->bytes, 2u * (131072u * 15360u + 9u * 512u * 14336u));
  // A2: 2 * (64 * 8 * min(16, 8) * 2048 * 2 + 2 MiB).
  need = hccl_buffer_need({.experts = 128, .ep = 8, .batch = 64, .hidden = 2048, .top_k = 8, .family = "A2"});
  ASSERT_TRUE(need.ok());
  EXPECT_EQ(need->bytes, 2u * (64u * 8u * 8u * 2048u * 2u + (2u << 20)));
  // A2 hierarchy: 256 * 128 * (7168 * 2 + 4 * 8 * 4) + 104 MiB.
  need = hccl_buffer_need(
      {.experts = 256, .ep = 16, .batch = 128, .hidden = 7168, .top_k = 6, .family = "A2", .comm_alg = "hierarchy"});
  ASSERT_TRUE(need.ok());
  EXPECT_EQ(need->bytes, 256u * 128u * (7168u * 2u + 128u) + (104u << 20));
}

TEST(HcclBuffer, Refusals) {
  EXPECT_EQ(hccl_buffer_need({.experts = 8, .ep = 2, .batch = 1, .hidden = 64, .top_k = 2, .family = "950PR"}).status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(hccl_buffer_need({.experts = 8, .ep = 2, .batch = 1, .hidden = 64, .top_k = 2, .family = "310P"}).status().code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(hccl_buffer_need({.experts = 8, .ep = 2, .batch = 1, .hidden = 64, .top_k = 9, .family = "A3"}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      hccl_buffer_need({.experts = 8, .ep = 2, .batch = 1, .hidden = 64, .top_k = 2, .family = "A2", .comm_alg = "fullmesh_v2"})
          .status()
          .code(),
      StatusCode::kInvalidArgument);
  // The largest request that is allowed does not overflow.
  EXPECT_EQ(
      hccl_buffer_need({.experts = 65536, .ep = 65536, .batch = 1 << 24, .hidden = 1 << 20, .top_k = 65536, .family = "A3"})
          .status()
          .code(),
      StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pointsman::doctor
