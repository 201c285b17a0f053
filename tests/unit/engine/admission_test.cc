// Admission: which operations begin, and when. The first test of each mode walks through what its paper describes.
#include "daemon/engine/ordering/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <vector>

namespace tensorlane::engine {
namespace {

using protocol::Ordering;
using protocol::Plan;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Ids = std::vector<std::uint32_t>;

Plan plan_of(Ordering ordering, std::uint32_t tensors, std::uint32_t concurrent = 1) {
  Plan plan{.version = 1, .ordering = ordering, .concurrent = concurrent};
  for (std::uint32_t i = 0; i < tensors; ++i) {
    protocol::PlanTensor t;
    t.id = TensorId(i);
    t.urgency = 0.5f;
    plan.tensors.push_back(t);
  }
  return plan;
}

// One host. What each call lets begin is its result.
class Host {
 public:
  explicit Host(const Plan& plan, std::uint32_t ranks = 1) : admission_(ranks), ranks_(ranks) { admission_.grow(plan); }
  Admission& operator*() { return admission_; }
  Admission* operator->() { return &admission_; }

  Ids submit(std::uint32_t tensor) {
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) admission_.submitted(rank, TensorId(tensor));
    admission_.ready(TensorId(tensor));
    return begun();
  }
  Ids wait(std::uint32_t tensor, std::uint32_t rank = 0) {
    admission_.waits(rank, TensorId(tensor));
    return begun();
  }
  Ids leave_network(std::uint32_t tensor) {
    admission_.left_network(TensorId(tensor));
    return begun();
  }
  Ids complete(std::uint32_t tensor) {
    admission_.left_network(TensorId(tensor));
    admission_.completed(TensorId(tensor));
    return begun();
  }
  Ids begun() {
    Ids ids;
    for (TensorId id; admission_.next(&id);) ids.push_back(id.value);
    return ids;
  }

 private:
  Admission admission_;
  std::uint32_t ranks_;
};

// MXNet-MPI, figure 5: push and pull of a key, then the next key, whichever gradient is there first.
TEST(Funnel, TakesOneKeyAfterTheOther) {
  Host host(plan_of(Ordering::kFunnel, 3));
  EXPECT_EQ(host->gate(), Admission::Gate::kBeforeLocal);
  EXPECT_THAT(host.submit(2), IsEmpty());
  EXPECT_THAT(host.submit(1), IsEmpty());
  EXPECT_THAT(host.submit(0), ElementsAre(0));
  EXPECT_THAT(host.leave_network(0), IsEmpty());  // the pull is not done
  EXPECT_THAT(host.complete(0), ElementsAre(1));
  EXPECT_THAT(host.submit(0), IsEmpty());  // of the next iteration
  EXPECT_THAT(host.complete(1), ElementsAre(2));
  EXPECT_EQ(host->held(), 1u);
  EXPECT_THAT(host.complete(2), ElementsAre(0));
}

// MXNet-MPI, figure 8, with OUTSTANDING = 2.
TEST(Concurrent, HasSoManyOutstanding) {
  Host host(plan_of(Ordering::kConcurrent, 4, 2));
  EXPECT_THAT(host.submit(1), IsEmpty());
  EXPECT_THAT(host.submit(3), IsEmpty());
  EXPECT_THAT(host.submit(0), ElementsAre(0, 1));
  EXPECT_THAT(host.submit(2), IsEmpty());
  EXPECT_THAT(host.complete(1), ElementsAre(2));
  EXPECT_THAT(host.complete(0), ElementsAre(3));
}

// MXNet-MPI, figures 10 to 12: the dummy tensor orders the allreduces between hosts; pushes before them and copies
// after them are not in the chain.
TEST(Chained, NextBeginsWhenTheOneBeforeHasLeftTheNetwork) {
  Host host(plan_of(Ordering::kChained, 3));
  EXPECT_EQ(host->gate(), Admission::Gate::kBeforeNetwork);
  EXPECT_THAT(host.submit(0), ElementsAre(0));
  EXPECT_THAT(host.submit(2), IsEmpty());
  EXPECT_THAT(host.submit(1), IsEmpty());
  EXPECT_THAT(host.leave_network(0), ElementsAre(1));  // its copy is still under way
  EXPECT_THAT(host.complete(0), IsEmpty());
  EXPECT_THAT(host.leave_network(1), ElementsAre(2));
}

// TicTac, section 5.1: a transfer waits until the counter of those handed over has reached its number.
TEST(Counters, HandOverInOrderWhateverBecomesReadyFirst) {
  Host host(plan_of(Ordering::kCounters, 4));
  EXPECT_EQ(host->gate(), Admission::Gate::kBeforeNetwork);
  EXPECT_THAT(host.submit(2), IsEmpty());
  EXPECT_THAT(host.submit(1), IsEmpty());
  EXPECT_THAT(host.submit(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(host.complete(1), IsEmpty());
  EXPECT_THAT(host.submit(1), IsEmpty());  // of the next iteration: after 3 and 0
  EXPECT_THAT(host.submit(3), ElementsAre(3));
  EXPECT_THAT(host.complete(0), IsEmpty());
  EXPECT_THAT(host.submit(0), ElementsAre(0, 1));
}

TEST(Admission, OthersHaveNoGate) {
  EXPECT_EQ(Admission::gate_of(Ordering::kTagged), Admission::Gate::kNone);
  EXPECT_EQ(Admission::gate_of(Ordering::kNegotiated), Admission::Gate::kNone);
}

TEST(Admission, UrgencyComesBeforeRegistration) {
  Plan plan = plan_of(Ordering::kCounters, 4);
  plan.tensors[2].urgency = 0.9f;
  plan.tensors[1].urgency = 0.1f;
  Host host(plan);
  for (std::uint32_t t : {0u, 1u, 3u}) EXPECT_THAT(host.submit(t), IsEmpty());
  EXPECT_THAT(host.submit(2), ElementsAre(2, 0, 3, 1));
}

TEST(Admission, TensorsThatCameLaterDoNotWaitForTheFirst) {
  Plan plan = plan_of(Ordering::kFunnel, 2);
  Host host(plan);
  Plan more = plan_of(Ordering::kFunnel, 4);
  more.tensors[2].group = more.tensors[3].group = 2;
  host->grow(more);
  host->grow(plan);  // overtaken
  EXPECT_THAT(host.submit(1), IsEmpty());
  EXPECT_THAT(host.submit(3), IsEmpty());
  EXPECT_THAT(host.submit(2), ElementsAre(2));
  EXPECT_THAT(host.submit(0), ElementsAre(0));
  EXPECT_THAT(host.complete(2), ElementsAre(3));
}

// Whether a host hears of two groups at once or one after the other must not matter: others may have heard otherwise.
TEST(Admission, GroupsAreThePlansNotTheMessages) {
  Plan plan = plan_of(Ordering::kFunnel, 4);
  plan.tensors[2].group = plan.tensors[3].group = 1;
  Host host(plan);
  EXPECT_THAT(host.submit(2), ElementsAre(2));
  EXPECT_THAT(host.submit(0), ElementsAre(0));
}

TEST(Admission, AGroupInThePlacesOfOthersHasAnOrderOfItsOwn) {
  Plan plan = plan_of(Ordering::kFunnel, 5);
  for (std::uint32_t i = 1; i < 4; ++i) plan.tensors[i].group = 1;
  plan.tensors[4].group = 2;
  Host host(plan);
  EXPECT_THAT(host.submit(1), ElementsAre(1));
  EXPECT_THAT(host.submit(2), IsEmpty());
  EXPECT_THAT(host.complete(1), ElementsAre(2));
  EXPECT_THAT(host.complete(2), IsEmpty());  // the next one is 3
  host->vacate({1, 3});
  plan.vacate({1, 3});
  for (std::uint32_t i = 1; i < 3; ++i) {
    plan.tensors[i] = plan.tensors[0];
    plan.tensors[i].id = TensorId(i);
    plan.tensors[i].group = 3;
  }
  plan.tensors[2].urgency = 0.9f;
  host->grow(plan, {1, 2});
  EXPECT_THAT(host.submit(1), IsEmpty());
  EXPECT_THAT(host.submit(2), ElementsAre(2));
  EXPECT_THAT(host.complete(2), ElementsAre(1));
  EXPECT_THAT(host.complete(1), IsEmpty());
  // Groups that stay are not touched.
  EXPECT_THAT(host.submit(0), ElementsAre(0));
  EXPECT_THAT(host.submit(4), ElementsAre(4));
}

// ---- iterations that leave a tensor out ----

TEST(LeftOut, RankThatWaitsWillNotSubmitIt) {
  Host host(plan_of(Ordering::kFunnel, 3));
  EXPECT_THAT(host.submit(0), ElementsAre(0));
  EXPECT_THAT(host.complete(0), IsEmpty());
  EXPECT_THAT(host.submit(2), IsEmpty());
  EXPECT_EQ(host->missing(), TensorId(1));
  EXPECT_THAT(host.wait(2), ElementsAre(2));
  EXPECT_EQ(host->missing(), std::nullopt);
  EXPECT_EQ(host->loose(), 1u);
}

TEST(LeftOut, ItBeginsWhenItIsReadyFromThenOn) {
  Host host(plan_of(Ordering::kFunnel, 2));
  EXPECT_THAT(host.submit(1), IsEmpty());
  EXPECT_THAT(host.wait(1), ElementsAre(1));
  EXPECT_THAT(host.submit(0), ElementsAre(0));  // though 1 runs
  EXPECT_THAT(host.complete(1), IsEmpty());
  EXPECT_THAT(host.submit(1), ElementsAre(1));  // which no longer waits for it
  EXPECT_THAT(host.complete(0), IsEmpty());
  EXPECT_THAT(host.submit(0), ElementsAre(0));
}

TEST(LeftOut, AllTensorsMayBe) {
  Host host(plan_of(Ordering::kChained, 2));
  EXPECT_THAT(host.submit(1), IsEmpty());
  EXPECT_THAT(host.wait(1), ElementsAre(1));
  EXPECT_THAT(host.submit(0), ElementsAre(0));
  EXPECT_THAT(host.complete(1), IsEmpty());
  EXPECT_THAT(host.wait(0), IsEmpty());
  EXPECT_THAT(host.complete(0), IsEmpty());
  EXPECT_THAT(host.submit(0), ElementsAre(0));
  EXPECT_THAT(host.wait(0), IsEmpty());
  EXPECT_THAT(host.complete(0), IsEmpty());
  EXPECT_THAT(host.submit(0), ElementsAre(0));
}

// Only who waits without having submitted it leaves it out; a rank that is merely slower does not.
TEST(LeftOut, NotByARankThatIsLate) {
  Host host(plan_of(Ordering::kFunnel, 2), 2);
  host->submitted(0, TensorId(0));
  host->submitted(0, TensorId(1));
  host->submitted(1, TensorId(1));
  host->ready(TensorId(1));
  EXPECT_THAT(host.wait(1, 0), IsEmpty());
  EXPECT_EQ(host->missing(), TensorId(0));
  EXPECT_EQ(host->loose(), 0u);
  EXPECT_THAT(host.wait(1, 1), ElementsAre(1));  // rank 1 waits, too, and has left 0 out
}

TEST(LeftOut, NotByAWaitThatIsOver) {
  Host host(plan_of(Ordering::kFunnel, 3));
  EXPECT_THAT(host.submit(0), ElementsAre(0));
  EXPECT_THAT(host.wait(0), IsEmpty());
  EXPECT_THAT(host.complete(0), IsEmpty());
  EXPECT_THAT(host.submit(2), IsEmpty());
  EXPECT_THAT(host.begun(), IsEmpty());
  EXPECT_THAT(host.submit(1), ElementsAre(1));
}

// While its operation runs nobody can have submitted the next one.
TEST(LeftOut, NotByAWaitForItself) {
  Host host(plan_of(Ordering::kCounters, 2));
  EXPECT_THAT(host.submit(0), ElementsAre(0));
  EXPECT_THAT(host.submit(1), ElementsAre(1));
  EXPECT_THAT(host.complete(1), IsEmpty());
  EXPECT_THAT(host.submit(1), IsEmpty());
  EXPECT_THAT(host.wait(0), IsEmpty());
  EXPECT_EQ(host->missing(), std::nullopt);
  EXPECT_THAT(host.complete(0), IsEmpty());
  EXPECT_EQ(host->loose(), 0u);
  EXPECT_THAT(host.submit(0), ElementsAre(0, 1));
}

// ---- pulls ----

// Pushes 0 and 2 and their pulls, 1 and 3, which are what is needed first.
Plan pushes_and_pulls(Ordering ordering) {
  Plan plan = plan_of(ordering, 4);
  for (std::uint32_t t : {0u, 2u}) plan.tensors[t].operation = Operation::kPush;
  for (std::uint32_t t : {1u, 3u}) {
    plan.tensors[t].operation = Operation::kPull;
    plan.tensors[t].urgency = 1;
  }
  return plan;
}

class Pulls : public ::testing::TestWithParam<Ordering> {};

// Nobody blocks: programs that ask whether a request is done must get on, too.
TEST_P(Pulls, FollowTheirPush) {
  Host host(pushes_and_pulls(GetParam()));
  for (int iteration = 0; iteration < 3; ++iteration) {
    for (std::uint32_t push : {0u, 2u}) {
      EXPECT_THAT(host.submit(push), ElementsAre(push));
      EXPECT_THAT(host.complete(push), IsEmpty());
      EXPECT_THAT(host.submit(push + 1), ElementsAre(push + 1));
      EXPECT_THAT(host.complete(push + 1), IsEmpty());
    }
  }
  EXPECT_EQ(host->loose(), 0u);
}

TEST_P(Pulls, HoldNoPush) {
  Host host(pushes_and_pulls(GetParam()));
  for (int iteration = 0; iteration < 3; ++iteration) {
    EXPECT_THAT(host.submit(0), ElementsAre(0));
    EXPECT_THAT(host.complete(0), IsEmpty());
    EXPECT_THAT(host.submit(1), ElementsAre(1));
    EXPECT_THAT(host.submit(2), ElementsAre(2));  // before that pull is over
    EXPECT_EQ(host->missing(), std::nullopt);
    EXPECT_THAT(host.complete(2), IsEmpty());
    EXPECT_THAT(host.complete(1), IsEmpty());  // nor is 3 ever pulled
  }
}

TEST_P(Pulls, LeavePushesTheirOrder) {
  Host host(pushes_and_pulls(GetParam()));
  EXPECT_THAT(host.submit(2), IsEmpty());
  EXPECT_EQ(host->missing(), TensorId(0));
  EXPECT_EQ(host.submit(0).front(), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, Pulls,
                         ::testing::Values(Ordering::kFunnel, Ordering::kConcurrent, Ordering::kChained,
                                           Ordering::kCounters),
                         [](const auto& of) { return std::string(protocol::ordering_name(of.param)); });

// ---- several hosts ----

// Hosts of which every operation needs all. Each submits in an order of its own, and waits now and then.
class Hosts {
 public:
  Hosts(const Plan& plan, std::size_t hosts, std::uint64_t seed) : plan_(plan), random_(seed) {
    for (std::size_t h = 0; h < hosts; ++h) hosts_.emplace_back(plan);
    begun_.resize(hosts);
    pending_.resize(hosts);
  }

  // Iterations in which the hosts submit all tensors but `left_out`, in orders of their own, and then wait for all.
  void iterate(const std::vector<std::uint32_t>& left_out) {
    std::vector<Ids> orders(hosts_.size());
    for (Ids& order : orders) {
      for (std::uint32_t t = 0; t < plan_.tensors.size(); ++t) {
        if (std::ranges::find(left_out, t) == left_out.end()) order.push_back(t);
      }
      std::ranges::shuffle(order, random_);
    }
    const std::size_t each = orders[0].size();
    std::vector<std::size_t> at(hosts_.size());
    for (std::size_t left = each * hosts_.size(); left > 0; --left) {
      std::size_t h = random_() % hosts_.size();
      while (at[h] == each) h = (h + 1) % hosts_.size();
      pending_[h][orders[h][at[h]]] = true;
      begin(h, hosts_[h].submit(orders[h][at[h]++]));
      ++expected_;
      settle();
    }
    for (std::size_t h = 0; h < hosts_.size(); ++h) {
      for (std::uint32_t t : orders[h]) {
        if (!pending_[h][t]) continue;
        begin(h, hosts_[h].wait(t));
        settle();
      }
    }
  }
  std::uint64_t completed() const { return completed_; }
  std::uint64_t expected() const { return expected_; }
  std::size_t most_running() const { return most_running_; }

 private:
  void begin(std::size_t h, const Ids& ids) {
    for (std::uint32_t t : ids) begun_[h][t] = true;
    most_running_ = std::max(most_running_, static_cast<std::size_t>(std::ranges::count_if(
                                                begun_[h], [](const auto& entry) { return entry.second; })));
  }
  // What has begun everywhere completes everywhere.
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t t = 0; t < plan_.tensors.size(); ++t) {
        if (!std::ranges::all_of(begun_, [&](auto& of_host) { return of_host[t]; })) continue;
        moved = true;
        for (std::size_t h = 0; h < hosts_.size(); ++h) {
          begun_[h][t] = pending_[h][t] = false;
          begin(h, hosts_[h].complete(t));
          ++completed_;
        }
      }
    }
  }

  Plan plan_;
  std::mt19937_64 random_;
  std::vector<Host> hosts_;
  std::vector<std::map<std::uint32_t, bool>> begun_, pending_;
  std::uint64_t completed_ = 0, expected_ = 0;
  std::size_t most_running_ = 0;
};

class Modes : public ::testing::TestWithParam<Ordering> {};

TEST_P(Modes, RandomOrdersEverywhereEndEverywhere) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Hosts hosts(plan_of(GetParam(), 8, 3), 3, seed);
    for (int i = 0; i < 5; ++i) hosts.iterate({});
    ASSERT_EQ(hosts.completed(), hosts.expected()) << seed;
    const std::map<Ordering, std::size_t> most{
        {Ordering::kFunnel, 1}, {Ordering::kConcurrent, 3}, {Ordering::kChained, 1}, {Ordering::kCounters, 8}};
    EXPECT_LE(hosts.most_running(), most.at(GetParam())) << seed;
  }
}

TEST_P(Modes, TensorsThatIterationsLeaveOutStopNobody) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Hosts hosts(plan_of(GetParam(), 8, 3), 3, seed);
    std::mt19937_64 random(seed);
    for (int i = 0; i < 8; ++i) {
      hosts.iterate({static_cast<std::uint32_t>(random() % 8), static_cast<std::uint32_t>(random() % 8)});
      ASSERT_EQ(hosts.completed(), hosts.expected()) << "seed " << seed << ", iteration " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Modes,
                         ::testing::Values(Ordering::kFunnel, Ordering::kConcurrent, Ordering::kChained,
                                           Ordering::kCounters),
                         [](const auto& of) { return std::string(protocol::ordering_name(of.param)); });

}  // namespace
}  // namespace tensorlane::engine
