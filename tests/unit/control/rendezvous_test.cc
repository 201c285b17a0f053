#include "daemon/control/rendezvous.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tensorlane::control {
namespace {

Claim claim(std::uint32_t rank, std::uint32_t local_rank, std::uint32_t local_world = 2, std::uint32_t world = 4) {
  return {rank, world, local_rank, local_world, 100 + rank};
}

std::string error(const std::vector<Claim>& claims) {
  return Gathering("j").arrive("h0", claims).to_string();
}

TEST(Gathering, completes_when_the_world_has_come_and_orders_hosts_by_lowest_rank) {
  Gathering gathering("j");
  ASSERT_TRUE(gathering.arrive("a", {claim(3, 1), claim(2, 0)}).ok());
  EXPECT_FALSE(gathering.complete());
  EXPECT_EQ(gathering.missing(), (std::vector<std::uint32_t>{0, 1}));
  ASSERT_TRUE(gathering.arrive("z", {claim(0, 0)}).ok());
  EXPECT_FALSE(gathering.complete());
  EXPECT_EQ(gathering.arrived_text(), "a (ranks 2-3), z (rank 0)");
  ASSERT_TRUE(gathering.arrive("z", {claim(0, 0), claim(1, 1)}).ok());
  ASSERT_TRUE(gathering.complete());
  const Roster roster = gathering.roster();
  EXPECT_EQ(roster.hosts[0].name, "z");
  EXPECT_EQ(roster.hosts[1].name, "a");
  EXPECT_EQ(roster.hosts[1].ranks, (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(roster.host_of(3), "a");
  EXPECT_EQ(roster.index_of("a"), 1u);
  EXPECT_FALSE(roster.index_of("b").has_value());
}

TEST(Gathering, names_both_sides_of_a_conflict_on_one_host) {
  EXPECT_EQ(error({claim(1, 0), claim(1, 1)}),
            "rank 1 comes twice: from process 101 on host h0 and from process 101 on host h0: job 'j' on host h0: give "
            "every process a RANK of "
            "its own");
  EXPECT_EQ(error({claim(0, 0), claim(1, 0)}),
            "local rank 0 comes twice: from rank 0 and from rank 1: job 'j' on host h0: give every process of a host a "
            "LOCAL_RANK of its own");
  EXPECT_EQ(
      error({claim(0, 0), claim(1, 1, 2, 5)}),
      "world sizes differ: rank 0 says 4, rank 1 says 5: job 'j' on host h0: give every rank the same WORLD_SIZE");
  EXPECT_EQ(error({claim(0, 0), claim(1, 1, 3)}),
            "local world sizes differ: rank 0 says 2, rank 1 says 3: job 'j' on host h0: give every rank of a host the "
            "same LOCAL_WORLD_SIZE");
  EXPECT_EQ(error({claim(0, 1), claim(1, 0)}),
            "rank 0 has local rank 1 but is number 0 by rank among the host's ranks: job 'j' on host h0: number local "
            "ranks in the order of "
            "ranks, as torchrun does");
}

TEST(Gathering, refuses_numbers_out_of_range) {
  EXPECT_EQ(error({claim(4, 0)}),
            "rank 4 is outside of world size 4: job 'j' on host h0: set RANK to 0 up to WORLD_SIZE - 1");
  EXPECT_EQ(error({claim(0, 0, 2, 0)}),
            "world size 0 of rank 0 is not between 1 and 65536: job 'j' on host h0: set WORLD_SIZE");
  EXPECT_EQ(error({claim(0, 2)}),
            "rank 0 has local rank 2 of local world size 2 and world size 4: job 'j' on host h0: set LOCAL_RANK to 0 "
            "up to LOCAL_WORLD_SIZE - 1, "
            "and that to at most WORLD_SIZE");
  EXPECT_FALSE(error({claim(0, 0, 5)}).empty());
  EXPECT_EQ(error({claim(0, 0, 64, 65)}), "ok");
  EXPECT_EQ(error({claim(0, 0, 65, 65)}),
            "local world size 65 of rank 0: a host has at most 64 ranks of a job: job 'j' on host h0: start fewer "
            "processes on each host");
  EXPECT_EQ(error({}), "no rank: job 'j' on host h0: start ranks");
}

TEST(Gathering, names_both_sides_of_a_conflict_between_hosts_and_stays_as_it_was) {
  Gathering gathering("j");
  ASSERT_TRUE(gathering.arrive("h0", {claim(0, 0), claim(1, 1)}).ok());
  EXPECT_EQ(gathering.arrive("h1", {claim(1, 0)}).to_string(),
            "rank 1 comes twice: from process 101 on host h0 and from process 101 on host h1: job 'j' on host h1: give "
            "every process a RANK of "
            "its own");
  EXPECT_EQ(gathering.arrive("h1", {claim(2, 0, 2, 8)}).to_string(),
            "world sizes differ: rank 0 on host h0 says 4, rank 2 on host h1 says 8: job 'j' on host h1: give every "
            "rank the same WORLD_SIZE");
  EXPECT_EQ(gathering.missing(), (std::vector<std::uint32_t>{2, 3}));
}

TEST(Gathering, a_full_world_with_an_incomplete_host_is_an_error_at_once) {
  Gathering gathering("j");
  ASSERT_TRUE(gathering.arrive("h0", {claim(0, 0, 2, 2)}).ok());
  EXPECT_EQ(gathering.arrive("h1", {claim(1, 0, 1, 2)}).to_string(),
            "all 2 ranks have come, but host h0 has 1 of the 2 that LOCAL_WORLD_SIZE says: job 'j' on host h1: set "
            "LOCAL_WORLD_SIZE to the number "
            "of ranks on the host");
}

TEST(Gathering, a_host_that_is_forgotten_has_not_come) {
  Gathering gathering("j");
  ASSERT_TRUE(gathering.arrive("h0", {claim(0, 0), claim(1, 1)}).ok());
  ASSERT_TRUE(gathering.arrive("h1", {claim(2, 0), claim(3, 1)}).ok());
  gathering.forget("h1");
  EXPECT_FALSE(gathering.complete());
  EXPECT_EQ(gathering.missing(), (std::vector<std::uint32_t>{2, 3}));
}

TEST(RanksText, reads_as_people_write) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7-8");
  std::vector<std::uint32_t> odd;
  for (std::uint32_t i = 0; i < 100; ++i) odd.push_back(2 * i);
  EXPECT_EQ(ranks_text(odd), "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 84 more");
}

TEST(RanksText, names_each_rank_with_its_own_host) {
  const Roster roster{4, {{"h0", {0, 3}, {}}, {"h1", {1}, {}}, {"h2", {2}, {}}}};
  EXPECT_EQ(ranks_have_text(roster, {2}), "rank 2 on host h2 has");
  EXPECT_EQ(ranks_have_text(roster, {0, 3}), "ranks 0, 3 on host h0 have");
  EXPECT_EQ(ranks_have_text(roster, {1, 2, 3}), "rank 3 on host h0, rank 1 on host h1, rank 2 on host h2 have");
  Roster large{100, {}};
  std::vector<std::uint32_t> all;
  for (std::uint32_t rank = 0; rank < 100; ++rank) {
    large.hosts.push_back({fmt::format("h{}", rank), {rank}, {}});
    all.push_back(rank);
  }
  const std::string text = ranks_have_text(large, all);
  EXPECT_EQ(text.substr(0, 36), "rank 0 on host h0, rank 1 on host h1");
  EXPECT_TRUE(text.ends_with("rank 7 on host h7 and those of 92 more hosts have")) << text;
}

TEST(RosterOnTheWire, comes_back_as_it_went_and_nothing_else_passes) {
  const Roster roster{3, {{"a", {0, 2}, {"10.0.0.1", "10.1.0.1"}}, {"b", {1}, {"10.0.0.2", "10.1.0.2"}}}};
  const auto got = roster_from_json(3, roster_to_json(roster));
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->hosts[0].ranks, roster.hosts[0].ranks);
  EXPECT_EQ(got->hosts[1].name, "b");
  EXPECT_EQ(got->hosts[1].addresses, roster.hosts[1].addresses);
  EXPECT_FALSE(roster_from_json(4, roster_to_json(roster))) << "a rank is missing";
  EXPECT_FALSE(roster_from_json(2, roster_to_json(roster))) << "a rank is out of range";
  EXPECT_FALSE(roster_from_json(3, roster_to_json({3, {{"a", {0, 2}, {"x"}}, {"a", {1}, {"x"}}}}))) << "a host twice";
  EXPECT_FALSE(roster_from_json(3, roster_to_json({3, {{"a", {0, 1, 2}, {"x"}}, {"b", {1}, {"x"}}}})))
      << "a rank twice";
  EXPECT_FALSE(roster_from_json(3, roster_to_json({3, {{"a", {2, 1, 0}, {"x"}}}}))) << "not ascending";
  EXPECT_FALSE(roster_from_json(3, roster_to_json({3, {{"a", {0, 1, 2}, {"x"}}, {"b", {}, {"x"}}}})))
      << "a host without ranks";
  EXPECT_TRUE(roster_from_json(3, roster_to_json({3, {{"a", {0, 1, 2}, {"x"}}}})));
  EXPECT_FALSE(roster_from_json(3, roster_to_json({3, {{"a", {0, 1, 2}, {}}}}))) << "no rails";
  EXPECT_FALSE(roster_from_json(3, roster_to_json({3, {{"a", {0, 1, 2}, std::vector<std::string>(9, "x")}}})))
      << "too many rails";
  EXPECT_FALSE(roster_from_json(3, roster_to_json({3, {{"a", {0, 2}, {"x"}}, {"b", {1}, {"x", "y"}}}})))
      << "different numbers of rails";
  EXPECT_FALSE(roster_from_json(0, nlohmann::json::array()));
}

TEST(ClaimsOnTheWire, come_back_as_they_went) {
  const auto got = claims_from_json(claims_to_json({claim(1, 1), claim(0, 0)}));
  ASSERT_TRUE(got && got->size() == 2);
  EXPECT_EQ((*got)[0].rank, 1u);
  EXPECT_EQ((*got)[0].pid, 101u);
  EXPECT_FALSE(claims_from_json(nlohmann::json::array({1})));
  EXPECT_FALSE(claims_from_json(nlohmann::json::array({nlohmann::json::array({1, 2, 3, 4})})));
}

TEST(Rails, of_all_hosts_of_a_job_are_as_many_and_the_leaders_file_says_which) {
  fabric::Fabric fabric;
  fabric.path = "f.yaml";
  fabric.hosts.resize(3);
  for (int i = 0; i < 3; ++i) {
    fabric.hosts[i].name = fmt::format("h{}", i);
    fabric.hosts[i].line = 10 + i;
    fabric.hosts[i].addresses["tcp"] = {fmt::format("10.0.0.{}", i), fmt::format("10.1.0.{}", i)};
  }
  fabric.hosts[2].addresses["tcp"].pop_back();
  Roster roster{2, {{"h1", {0}, {}}, {"h0", {1}, {}}}};
  ASSERT_TRUE(add_endpoints(fabric, "j", &roster).ok());
  EXPECT_EQ(roster.hosts[0].addresses, (std::vector<std::string>{"10.0.0.1", "10.1.0.1"}));
  EXPECT_EQ(roster.hosts[1].addresses, (std::vector<std::string>{"10.0.0.0", "10.1.0.0"}));
  Roster mixed{2, {{"h1", {0}, {}}, {"h2", {1}, {}}}};
  EXPECT_EQ(add_endpoints(fabric, "j", &mixed).to_string(),
            "host 'h1' has 2 tcp addresses, one for each rail, and host 'h2' has 1: job 'j', f.yaml:12: give all hosts "
            "of a job the same number of rails");
}

TEST(Leader, is_the_host_of_master_addr_by_name_or_address) {
  fabric::Fabric fabric;
  fabric.path = "f.yaml";
  for (const int i : {0, 1}) {
    fabric::Host host;
    host.name = fmt::format("h{}", i);
    host.addresses["tcp"] = {fmt::format("10.0.0.{}", i + 1)};
    fabric.hosts.push_back(host);
  }
  EXPECT_EQ(find_leader(fabric, "h0", "j", "h1", false).value(), "h1");
  EXPECT_EQ(find_leader(fabric, "h0", "j", "10.0.0.2", false).value(), "h1");
  EXPECT_EQ(find_leader(fabric, "h0", "j", "127.0.0.1", true).value(), "h0");
  EXPECT_EQ(find_leader(fabric, "h0", "j", "h1", true).value(), "h0");
  EXPECT_EQ(find_leader(fabric, "h0", "j", "127.0.0.1", false).status().to_string(),
            "MASTER_ADDR '127.0.0.1' is not a host of the fabric: job 'j' on host h0, f.yaml: set MASTER_ADDR to one "
            "of h0 (10.0.0.1), h1 "
            "(10.0.0.2)");
}

}  // namespace
}  // namespace tensorlane::control
