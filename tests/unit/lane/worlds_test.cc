// Tensors of process sets: operations among some of a job's ranks, wherever they are on its hosts. The right numbers in
// the memory of the set's ranks, and nothing in that of others, who are told of nothing.
#include <bit>

#include "common/protocol/rank_block.h"
#include "daemon/engine/batching/plan_batches.h"
#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

using protocol::Ordering;
using protocol::Pattern;
using protocol::PlanTensor;
using Numbers = std::vector<std::int32_t>;

constexpr std::int32_t kUntouched = -77;

// Of a number that has one, exactly.
std::uint16_t float16(float value) {
  if (value == 0) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits >> 31 << 15) | ((bits >> 23 & 0xff) - 127 + 15) << 10 | (bits >> 13 & 0x3ff));
}

struct SetShape {
  const char* name;
  std::size_t hosts, per_host;
  std::vector<std::uint32_t> ranks;
  Pattern pattern = Pattern::kRing;
  std::size_t rails = 1;
  Ordering ordering = Ordering::kTagged;
};
void PrintTo(const SetShape& shape, std::ostream* out) {
  *out << shape.name;
}

class WorldsTest : public LaneTest {
 protected:
  // The ranks' set in the job that has started.
  protocol::SharedWorld set_of(std::vector<std::uint32_t> ranks) const {
    std::vector<HostIndex> hosts;
    for (const std::uint32_t rank : ranks) hosts.push_back(plan_.rank_hosts[rank]);
    return std::make_shared<const protocol::World>(std::move(ranks), hosts);
  }
  // Of a 16-bit tensor: as it is planned where some host has several ranks of the set.
  static bool is_wide(const protocol::World& set) { return set.size() > set.hosts(); }
  // visit(client, number in the set)
  template <typename F>
  void each_member(const protocol::World& set, F visit) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      if (const auto number = set.rank_of(rank)) visit(client, *number);
    });
  }
  template <typename F>
  void each_other(const protocol::World& set, F visit) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      if (!set.rank_of(rank)) visit(client);
    });
  }
  // Operation `sequence` of the tensor of all ranks, an allreduce of int32 that lies at 0 everywhere.
  void all_ranks_work(std::uint32_t tensor, std::uint64_t sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      for (int i = 0; i < 100; ++i) client.data<std::int32_t>(0)[i] = static_cast<std::int32_t>(rank) + i;
      client.submit(tensor, sequence);
    });
    const auto world = static_cast<std::int32_t>(plan_.rank_hosts.size());
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(tensor, sequence), Code::kOk);
      for (int i = 0; i < 100; ++i) ASSERT_EQ(client.data<std::int32_t>(0)[i], world * (world - 1) / 2 + world * i);
    });
  }
};

class Sets : public WorldsTest, public ::testing::WithParamInterface<SetShape> {
 protected:
  // With one tensor of all ranks.
  void start_job() {
    const SetShape& shape = GetParam();
    rails_ = shape.rails;
    plan_.ordering = shape.ordering;
    start(shape.hosts, shape.per_host, {allreduce(100, Dtype::kInt32, shape.pattern)});
    set_ = set_of(shape.ranks);
    size_ = set_->size();
  }
  PlanTensor of_set(Operation operation, std::uint64_t elements, Dtype dtype = Dtype::kInt32) const {
    PlanTensor t = allreduce(elements, dtype, GetParam().pattern);
    t.operation = operation;
    t.world = set_;
    t.fp32_contributions = dtype_size(dtype) == 2 && is_wide(*set_);
    if (is_rooted(operation)) {
      t.root_rank = Rank(size_ - 1);
      t.root = set_->places().host(size_ - 1);
    }
    return t;
  }
  static std::vector<std::uint64_t> one_after_another(const std::vector<PlanTensor>& tensors) {
    std::vector<std::uint64_t> offsets;
    std::uint64_t offset = 4096;
    for (const PlanTensor& t : tensors) {
      offsets.push_back(offset);
      offset += (t.bytes() + 63) / 64 * 64;
    }
    return offsets;
  }

  protocol::SharedWorld set_;
  std::uint32_t size_ = 0;
};

constexpr std::uint64_t kBlock = 20'001, kRow = 5;

std::int32_t number_of(std::uint32_t from, std::uint32_t to, std::uint64_t sequence, std::uint64_t e) {
  return static_cast<std::int32_t>(from * 1'000'003 + to * 10'007 + sequence * 101 + e);
}

// What the buffer of a rank holds before an operation.
Numbers before(const PlanTensor& t, std::uint32_t size, std::uint32_t rank, std::uint64_t sequence) {
  if (exchanges(t.operation)) {
    const protocol::Exchange exchange = protocol::exchange_of(t, size);
    Numbers all(exchange.buffer(rank), kUntouched);
    for (std::uint32_t to = 0; to < size; ++to) {
      for (std::uint64_t e = 0; e < kBlock && exchange.sends(rank, to); ++e)
        all[exchange.sent_from(rank, to) + e] = number_of(rank, to, sequence, e);
    }
    return all;
  }
  Numbers all(t.elements, kUntouched);
  const bool gathers = t.operation == Operation::kAllgather;
  if (t.operation == Operation::kBroadcast && rank != t.root_rank.value) return all;
  for (std::uint64_t e = 0; e < t.elements; ++e) {
    if (gathers && e / kBlock != rank) continue;
    all[e] = number_of(rank, 0, sequence, e);
  }
  return all;
}

// What it holds afterwards, and which elements say something.
struct After {
  Numbers numbers;
  std::uint64_t first = 0, end = 0;
};
After after(const PlanTensor& t, std::uint32_t size, std::uint32_t rank, std::uint64_t sequence) {
  After right{before(t, size, rank, sequence), 0, 0};
  right.end = right.numbers.size();
  if (exchanges(t.operation)) {
    const protocol::Exchange exchange = protocol::exchange_of(t, size);
    for (std::uint32_t from = 0; from < size; ++from) {
      for (std::uint64_t e = 0; e < kBlock && exchange.sends(from, rank); ++e)
        right.numbers[exchange.lands_at(from, rank) + e] = number_of(from, rank, sequence, e);
    }
    return right;
  }
  for (std::uint64_t e = 0; e < t.elements; ++e) {
    std::int32_t& number = right.numbers[e];
    if (t.operation == Operation::kBroadcast) {
      number = number_of(t.root_rank.value, 0, sequence, e);
    } else if (t.operation == Operation::kAllgather) {
      number = number_of(static_cast<std::uint32_t>(e / kBlock), 0, sequence, e);
    } else {
      number = 0;
      for (std::uint32_t from = 0; from < size; ++from) number += number_of(from, 0, sequence, e);
    }
  }
  if (t.operation == Operation::kReduceScatter) {
    const auto block = protocol::rank_block(t.elements, t.row, size, rank);
    right.first = block.offset;
    right.end = block.offset + block.elements;
  }
  if (t.operation == Operation::kReduce && rank != t.root_rank.value) right.end = 0;
  return right;
}

TEST_P(Sets, EveryOperationIsAmongTheirRanks) {
  start_job();
  std::vector<PlanTensor> tensors;
  for (const Operation operation :
       {Operation::kAllreduce, Operation::kBroadcast, Operation::kAllgather, Operation::kReduceScatter,
        Operation::kReduce, Operation::kGather, Operation::kScatter, Operation::kAlltoall}) {
    std::uint64_t elements = kBlock;
    if (exchanges(operation)) elements *= protocol::Exchange::unit(operation, size_);
    if (operation == Operation::kAllgather) elements *= size_;
    if (operation == Operation::kReduceScatter) elements = (3 * size_ + 1) * kRow;
    tensors.push_back(of_set(operation, elements));
    if (operation == Operation::kReduceScatter) tensors.back().row = kRow;
  }
  tensors.push_back(of_set(Operation::kBarrier, 0));
  const std::vector<std::uint64_t> offsets = one_after_another(tensors);
  const std::uint64_t memory = offsets.back() / sizeof(std::int32_t);
  each_client(
      [&](FakeClient& client, std::uint32_t) { std::fill_n(client.data<std::int32_t>(0), memory, kUntouched); });
  place(1, tensors, offsets);
  const auto barrier_of_set = static_cast<std::uint32_t>(tensors.size());
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    all_ranks_work(0, 2 * sequence - 1);
    each_member(*set_, [&](FakeClient& client, std::uint32_t number) {
      for (std::uint32_t i = 0; i + 1 < tensors.size(); ++i) {
        const std::uint32_t at = (i + number) % (barrier_of_set - 1);  // each in an order of its own
        std::ranges::copy(before(tensors[at], size_, number, sequence), client.data<std::int32_t>(offsets[at]));
        client.submit(1 + at, sequence);
      }
      client.submit(barrier_of_set, sequence);
    });
    each_member(*set_, [&](FakeClient& client, std::uint32_t number) {
      ASSERT_EQ(client.wait(barrier_of_set, sequence), Code::kOk);
      for (std::uint32_t i = 0; i + 1 < tensors.size(); ++i) {
        const std::string where = std::string(operation_name(tensors[i].operation)) + ", " + std::to_string(number) +
                                  " of the set, operation " + std::to_string(sequence);
        ASSERT_EQ(client.wait(1 + i, sequence), Code::kOk) << where;
        const After right = after(tensors[i], size_, number, sequence);
        const std::int32_t* got = client.data<std::int32_t>(offsets[i]);
        for (std::uint64_t e = right.first; e < right.end; ++e)
          ASSERT_EQ(got[e], right.numbers[e]) << where << ": " << e;
      }
    });
    all_ranks_work(0, 2 * sequence);
  }
  each_other(*set_, [&](FakeClient& client) {
    for (std::uint32_t tensor = 1; tensor <= barrier_of_set; ++tensor) EXPECT_TRUE(client.pending(tensor, 1));
    const std::span<const std::int32_t> own(client.data<std::int32_t>(4096), memory - 1024);
    EXPECT_EQ(std::ranges::count(own, kUntouched), std::ssize(own));
  });
}

// What is pushed by the set is pulled by it; the two have one buffer. And averages, which are by the set's size.
TEST_P(Sets, AveragesAndKeysAreTheirs) {
  start_job();
  PlanTensor push = of_set(Operation::kPush, 30'000), pull = of_set(Operation::kPull, 30'000);
  PlanTensor average = of_set(Operation::kAllreduce, 5000, Dtype::kFloat16);
  PlanTensor scatter = of_set(Operation::kReduceScatter, 1000 * size_, Dtype::kFloat16);
  average.reduce = scatter.reduce = ReduceOp::kAverage;
  const std::uint64_t at_average = 4096 + 120'000, at_scatter = at_average + 10'048;
  place(1, {push, pull, average, scatter}, {4096, 4096, at_average, at_scatter});
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    each_member(*set_, [&](FakeClient& client, std::uint32_t number) {
      for (std::uint32_t i = 0; i < 30'000; ++i) client.data<std::int32_t>(4096)[i] = number_of(number, 0, sequence, i);
      const auto fill = [&](std::uint64_t at, std::uint64_t count) {
        for (std::uint64_t e = 0; e < count; ++e)
          client.data<std::uint16_t>(at)[e] = float16(static_cast<float>(2 * number * size_ + sequence + e % 7));
      };
      fill(at_average, average.elements);
      fill(at_scatter, scatter.elements);
      for (const std::uint32_t tensor : {1U, 3U, 4U}) client.submit(tensor, sequence);
    });
    each_member(*set_, [&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(1, sequence), Code::kOk);
      client.submit(2, sequence);
    });
    each_member(*set_, [&](FakeClient& client, std::uint32_t number) {
      for (const std::uint32_t tensor : {2U, 3U, 4U}) ASSERT_EQ(client.wait(tensor, sequence), Code::kOk) << tensor;
      for (std::uint32_t i = 0; i < 30'000; ++i) {
        std::int32_t sum = 0;
        for (std::uint32_t from = 0; from < size_; ++from) sum += number_of(from, 0, sequence, i);
        ASSERT_EQ(client.data<std::int32_t>(4096)[i], sum) << i;
      }
      const auto expect = [&](std::uint64_t at, std::uint64_t first, std::uint64_t count) {
        for (std::uint64_t e = first; e < first + count; ++e) {
          const auto mean = static_cast<float>((size_ - 1) * size_ + sequence + e % 7);
          ASSERT_EQ(client.data<std::uint16_t>(at)[e], float16(mean)) << e;
        }
      };
      expect(at_average, 0, average.elements);
      expect(at_scatter, 1000 * number, 1000);
    });
  }
}

// Small tensors of a set travel as one; each rank submits them in an order of its own.
TEST_P(Sets, SmallTensorsTravelTogether) {
  start_job();
  constexpr std::uint32_t kTensors = 12;
  std::vector<PlanTensor> tensors;
  for (std::uint32_t i = 0; i < kTensors; ++i) {
    tensors.push_back(of_set(Operation::kAllreduce, 100, i % 2 == 0 ? Dtype::kFloat32 : Dtype::kFloat16));
    tensors.back().reduce = i % 4 < 2 ? ReduceOp::kAverage : ReduceOp::kSum;
  }
  if (set_->hosts() > 1) {  // as a leader plans them
    const std::vector<std::uint8_t> asked(tensors.size());
    engine::append_batches(&tensors, asked, kib(2), [](PlanTensor&, std::size_t) {});
    ASSERT_GT(tensors.size(), kTensors);
    for (PlanTensor& t : tensors) t.world = set_;
  }
  const std::vector<std::uint64_t> offsets = one_after_another(tensors);
  place(1, tensors, offsets);
  const auto value = [&](std::uint32_t from, std::uint32_t tensor, std::uint64_t sequence, std::uint64_t e) {
    return static_cast<float>(2 * from * size_ + tensor + sequence + e % 5);
  };
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    each_member(*set_, [&](FakeClient& client, std::uint32_t number) {
      for (std::uint32_t i = 0; i < kTensors; ++i) {
        const std::uint32_t tensor = (5 * i + 7 * number) % kTensors;
        for (std::uint64_t e = 0; e < 100; ++e) {
          const float mine = value(number, tensor, sequence, e);
          if (tensor % 2 == 0)
            client.data<float>(offsets[tensor])[e] = mine;
          else
            client.data<std::uint16_t>(offsets[tensor])[e] = float16(mine);
        }
        client.submit(1 + tensor, sequence);
      }
    });
    each_member(*set_, [&](FakeClient& client, std::uint32_t) {
      for (std::uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        ASSERT_EQ(client.wait(1 + tensor, sequence), Code::kOk) << tensor;
        for (std::uint64_t e = 0; e < 100; ++e) {
          float right = 0;
          for (std::uint32_t from = 0; from < size_; ++from) right += value(from, tensor, sequence, e);
          if (tensor % 4 < 2) right /= static_cast<float>(size_);
          if (tensor % 2 == 0)
            ASSERT_EQ(client.data<float>(offsets[tensor])[e], right) << tensor;
          else
            ASSERT_EQ(client.data<std::uint16_t>(offsets[tensor])[e], float16(right)) << tensor;
        }
      }
    });
  }
  each_other(*set_, [&](FakeClient& client) { EXPECT_TRUE(client.pending(1, 1)); });
}

INSTANTIATE_TEST_SUITE_P(
    All, Sets,
    ::testing::Values(SetShape{"TwoOfThreeOnOneHost", 1, 3, {1, 2}},
                      SetShape{"TwoOfThreeOnOneOfTwoHosts", 2, 3, {3, 5}}, SetShape{"OneRank", 2, 2, {3}},
                      SetShape{"UnequalHosts", 2, 3, {1, 4, 5}},
                      SetShape{"TwoOnEachOfTheLastHosts", 3, 2, {2, 3, 4, 5}, Pattern::kParameterServer},
                      SetShape{"OneOnEachOfTwoHosts", 3, 2, {1, 5}, Pattern::kTree},
                      SetShape{"OnThreeOfFourHostsByTwoRails", 4, 2, {1, 4, 5, 7}, Pattern::kRing, 2},
                      SetShape{"BesideAnOrder", 3, 2, {1, 2, 3}, Pattern::kRing, 1, Ordering::kFunnel},
                      SetShape{"BesideNegotiation", 3, 2, {0, 4, 5}, Pattern::kRing, 1, Ordering::kNegotiated}),
    [](const auto& info) { return std::string(info.param.name); });

// A place in the plan serves sets of other hosts, and all ranks, one after the other: operations go on from its base.
TEST_F(WorldsTest, APlaceChangesHands) {
  start(3, 2, {});
  const std::vector<std::vector<std::uint32_t>> turns = {{0, 3}, {1, 4, 5}, {}, {2, 3}, {3, 4}, {}};
  for (const std::vector<std::uint32_t>& ranks : turns) {
    PlanTensor t = allreduce(5000, Dtype::kInt32);
    if (!ranks.empty()) t.world = set_of(ranks);
    const protocol::SharedWorld set = set_of(ranks.empty() ? std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5} : ranks);
    place(0, {t}, {0});
    for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
      each_member(*set, [&](FakeClient& client, std::uint32_t number) {
        for (int i = 0; i < 5000; ++i) client.data<std::int32_t>(0)[i] = number_of(number, 0, sequence, 0) + i;
        client.submit(0, sequence);
      });
      each_member(*set, [&](FakeClient& client, std::uint32_t) {
        ASSERT_EQ(client.wait(0, sequence), Code::kOk);
        std::int32_t sum = 0;
        for (std::uint32_t from = 0; from < set->size(); ++from) sum += number_of(from, 0, sequence, 0);
        const auto size = static_cast<std::int32_t>(set->size());
        for (int i = 0; i < 5000; ++i) ASSERT_EQ(client.data<std::int32_t>(0)[i], sum + size * i) << i;
      });
    }
    vacate({0, 1});
  }
}

// Who is late is a rank of the set, and by its name in the job.
TEST_F(WorldsTest, TheRankThatIsLateIsNamed) {
  start(1, 4, {}, milliseconds(100));
  PlanTensor t = allreduce(100, Dtype::kInt32);
  t.world = set_of({1, 3});
  place(0, {t}, {0});
  hosts_[0]->clients[1]->submit(0, 1);
  EXPECT_EQ(hosts_[0]->listener.wait_late(), std::pair(Rank(3), TensorId(0)));
  hosts_[0]->clients[3]->submit(0, 1);
  EXPECT_EQ(hosts_[0]->clients[1]->wait(0, 1), Code::kOk);
}

// A rank that is not in the set has not registered its tensor.
TEST_F(WorldsTest, WhoIsNotInItCannotSubmit) {
  start(1, 3, {});
  PlanTensor t = allreduce(100, Dtype::kInt32);
  t.world = set_of({0, 2});
  place(0, {t}, {0});
  ASSERT_TRUE(hosts_[0]->lane->bind(kJob, Rank(1), TensorId(0), {0, 0, 400}).ok());
  barrier();
  hosts_[0]->clients[1]->submit(0, 1);
  EXPECT_THAT(hosts_[0]->listener.wait_failed().to_string(),
              ::testing::HasSubstr("rank 1 submitted a tensor that it has not registered"));
}

// The host's only rank of a set may be any of those that it has of the job.
TEST_F(WorldsTest, ResultsInPartsAreToldToTheRankOfTheSet) {
  start(2, 2, {});
  constexpr std::uint64_t kLong = 200'000;
  PlanTensor t = allreduce(kLong, Dtype::kFloat32, Pattern::kParameterServer);
  t.world = set_of({1, 3});
  place(0, {t}, {0});
  const std::uint32_t parts = protocol::part_count(t.bytes());
  each_member(*t.world, [&](FakeClient& client, std::uint32_t number) {
    for (std::uint64_t e = 0; e < kLong; ++e) client.data<float>(0)[e] = static_cast<float>(number * 1000 + e % 1000);
    client.submit_parts(0, 1, {0, parts});
  });
  const auto told = [](FakeClient& client) {
    std::uint64_t mask = 0;
    for (const protocol::CompletionEntry& entry : client.in_place()) mask |= protocol::parts_in(entry.sequence).mask();
    return mask;
  };
  each_member(*t.world, [&](FakeClient& client, std::uint32_t) {
    // Not all of them need be told before the completion.
    const auto most = static_cast<int>(parts - parts / 8);
    for (int i = 0; i < 1000 && std::popcount(told(client)) < most; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_GE(std::popcount(told(client)), most);
    client.submit(0, 1);
  });
  each_member(*t.world, [&](FakeClient& client, std::uint32_t) {
    ASSERT_EQ(client.wait(0, 1), Code::kOk);
    for (std::uint64_t e = 0; e < kLong; ++e)
      ASSERT_EQ(client.data<float>(0)[e], static_cast<float>(1000 + 2 * (e % 1000))) << e;
  });
  each_other(*t.world, [](FakeClient& client) { EXPECT_THAT(client.in_place(), ::testing::IsEmpty()); });
}

// Messages of one tag and of the same ranks: each is received in its set, by who receives from anybody, too.
TEST_F(WorldsTest, MessagesStayInTheirSets) {
  start(2, 2, {});
  constexpr std::array kSets = {0U, 1U, protocol::kMaxSetNumber};
  const auto place_of = [](std::uint32_t slot) { return std::uint64_t{slot} * 64; };
  for (const auto& [from, to] : {std::pair<std::uint32_t, std::uint32_t>{0, 1}, {0, 3}, {3, 0}, {1, 1}}) {
    FakeClient &sender = *hosts_[from / 2]->clients[from % 2], &receiver = *hosts_[to / 2]->clients[to % 2];
    const auto send = [&, peer = to] {
      for (std::uint32_t i = 0; i < kSets.size(); ++i) {
        protocol::MessageSlot slot{.peer = peer, .sends = 1, .tag = 5, .count = 1, .offset = place_of(10 + i)};
        slot.set = kSets[i];
        *sender.data<float>(slot.offset) = static_cast<float>(i);
        sender.post(10 + i, slot);
      }
    };
    const auto receive = [&](std::uint32_t peer) {  // the other way round
      for (auto i = static_cast<std::uint32_t>(kSets.size()); i-- > 0;) {
        protocol::MessageSlot slot{.peer = peer, .tag = 5, .count = 1, .offset = place_of(i)};
        slot.set = kSets[i];
        receiver.post(i, slot);
      }
    };
    for (const std::uint32_t peer : {from, protocol::kAnyRank}) {
      for (const bool receives_first : {false, true}) {
        receives_first ? receive(peer) : send();
        std::this_thread::sleep_for(20ms);
        receives_first ? send() : receive(peer);
        for (std::uint32_t i = 0; i < kSets.size(); ++i) {
          const auto [code, outcome] = receiver.wait_message(i);
          ASSERT_EQ(code, Code::kOk);
          EXPECT_EQ(outcome.other_rank, from);
          EXPECT_EQ(*receiver.data<float>(place_of(i)), static_cast<float>(i)) << "from " << from << " to " << to;
          ASSERT_EQ(sender.wait_message(10 + i).first, Code::kOk);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tensorlane::lane
