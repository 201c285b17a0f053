// Contributions that come to exist in parts, through real lanes and TCP.
#include <bit>

#include "lane_fixture.h"

namespace tensorlane::lane {
namespace {

using protocol::PartRun;

constexpr std::uint64_t kLong = 200'000;
constexpr std::uint64_t kPart = protocol::part_bytes(kLong * sizeof(float)) / sizeof(float);
constexpr std::uint32_t kParts = protocol::part_count(kLong * sizeof(float));

class PartsTest : public LaneTest {
 protected:
  // One rank on each host, unless said otherwise.
  void begin(std::size_t hosts = 2, std::size_t per_host = 1,
             protocol::Pattern pattern = protocol::Pattern::kParameterServer, Duration late_after = seconds(10)) {
    protocol::PlanTensor t = allreduce(kLong, Dtype::kFloat32, pattern);
    t.slice_elements = 10'000;
    start(hosts, per_host, {t}, late_after);
  }
  static float value(std::uint32_t rank, std::uint64_t element) {
    return static_cast<float>((rank + 1) * (element % 1000));
  }
  // This part of the contribution comes to be.
  static void make(FakeClient& client, std::uint32_t rank, const PartRun& run) {
    const std::uint64_t from = run.first * kPart, to = std::min(from + run.count * kPart, kLong);
    for (std::uint64_t e = from; e < to; ++e) client.data<float>(0)[e] = value(rank, e);
  }
  static void spoil(FakeClient& client) {
    for (std::uint64_t e = 0; e < kLong; ++e) client.data<float>(0)[e] = -1e9F;
  }
  static void expect_sum(FakeClient& client, std::uint32_t ranks, const PartRun& run = {0, kParts}) {
    const std::uint64_t from = run.first * kPart, to = std::min(from + run.count * kPart, kLong);
    const auto terms = static_cast<float>(ranks * (ranks + 1) / 2);
    for (std::uint64_t e = from; e < to; ++e)
      ASSERT_EQ(client.data<float>(0)[e], terms * static_cast<float>(e % 1000)) << e;
  }
  static bool wait_in_place(FakeClient& client, std::size_t most) {
    for (int i = 0; i < 1000 && client.in_place().size() < most; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return client.in_place().size() >= most;
  }
  // Of the operation, what the client was told to be in place.
  static std::uint64_t told(FakeClient& client, std::uint64_t sequence) {
    std::uint64_t parts = 0;
    for (const protocol::CompletionEntry& entry : client.in_place()) {
      if (protocol::sequence_in(entry.sequence) == sequence) parts |= protocol::parts_in(entry.sequence).mask();
    }
    return parts;
  }
  static bool wait_told(FakeClient& client, std::uint64_t sequence, std::uint64_t parts) {
    for (int i = 0; i < 1000 && told(client, sequence) != parts; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return told(client, sequence) == parts;
  }
};

// By the number of rails.
class Parts : public PartsTest, public ::testing::WithParamInterface<std::size_t> {};

TEST_P(Parts, SumsAreRightHoweverTheyCome) {
  rails_ = GetParam();
  begin(3, 1, protocol::Pattern::kRing);
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      spoil(client);
      if (rank == 2 && sequence == 2) {  // one that knows nothing of parts
        make(client, rank, {0, kParts});
        return client.submit(0, sequence);
      }
      for (const PartRun run : {PartRun{7, 5}, PartRun{0, 3}, PartRun{40, 20}, PartRun{3, 4}}) {
        make(client, rank, run);
        client.submit_parts(0, sequence, run);
      }
      make(client, rank, {12, 28});
      make(client, rank, {60, kParts - 60});
      client.submit(0, sequence);
    });
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(0, sequence), Code::kOk);
      expect_sum(client, 3);
    });
  }
}

// The first half of a tensor has gone to the other host and come back while the second does not exist.
TEST_P(Parts, ResultsComeBackBeforeAllExists) {
  rails_ = GetParam();
  begin();
  each_client([&](FakeClient& client, std::uint32_t rank) {
    spoil(client);
    make(client, rank, {0, 32});
    client.submit_parts(0, 1, {0, 32});
  });
  std::vector<std::uint64_t> told(2);
  each_client([&](FakeClient& client, std::uint32_t rank) {
    ASSERT_TRUE(wait_in_place(client, 1));
    for (const protocol::CompletionEntry& entry : client.in_place()) {
      EXPECT_EQ(entry.status, Code::kInProgress);
      EXPECT_EQ(entry.tensor, 0u);
      EXPECT_EQ(protocol::sequence_in(entry.sequence), 1u);
      const PartRun run = protocol::parts_in(entry.sequence);
      ASSERT_TRUE(run.is_in(32));
      EXPECT_EQ(told[rank] & run.mask(), 0u) << "twice";
      told[rank] |= run.mask();
      expect_sum(client, 2, run);
    }
    EXPECT_TRUE(client.pending(0, 1));
  });
  each_client([&](FakeClient& client, std::uint32_t rank) {
    make(client, rank, {32, kParts - 32});
    client.submit(0, 1);
  });
  each_client([&](FakeClient& client, std::uint32_t) {
    ASSERT_EQ(client.wait(0, 1), Code::kOk);
    expect_sum(client, 2);
  });
}

// Slice 1 begins in part 5 and ends in part 10, and the last but one begins in part 58 and ends in part 63, as the last
// one does: of parts 5, 10 and 58 something does not exist yet. In every operation anew.
TEST_P(Parts, APartIsInPlaceWhenAllOfItIs) {
  rails_ = GetParam();
  begin();
  constexpr std::uint64_t kWhole = PartRun{6, 4}.mask() | PartRun{59, 5}.mask();
  for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      spoil(client);
      for (const PartRun run : {PartRun{5, 6}, PartRun{58, 6}}) {
        make(client, rank, run);
        client.submit_parts(0, sequence, run);
      }
    });
    each_client([&](FakeClient& client, std::uint32_t) {
      EXPECT_TRUE(wait_told(client, sequence, kWhole)) << std::hex << told(client, sequence);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    each_client([&](FakeClient& client, std::uint32_t rank) {
      EXPECT_EQ(told(client, sequence), kWhole);
      make(client, rank, {0, 5});
      make(client, rank, {11, 47});
      client.submit(0, sequence);
    });
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(0, sequence), Code::kOk);
      expect_sum(client, 2);
    });
  }
}

// The root of a broadcast: nothing goes that does not exist.
TEST_P(Parts, ABroadcastGoesAsItComesToExist) {
  rails_ = GetParam();
  protocol::PlanTensor t = allreduce(kLong);
  t.operation = Operation::kBroadcast;
  t.root = HostIndex(0);
  start(2, 1, {t});
  FakeClient &root = *hosts_[0]->clients[0], &other = *hosts_[1]->clients[0];
  each_client([](FakeClient& client, std::uint32_t) { spoil(client); });
  other.submit_parts(0, 1, {0, 1});
  make(root, 0, {0, 32});
  root.submit_parts(0, 1, {0, 32});
  ASSERT_TRUE(wait_in_place(other, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(told(other, 1) >> 32, 0u);
  other.submit(0, 1);
  make(root, 0, {32, kParts - 32});
  root.submit(0, 1);
  for (FakeClient* client : {&root, &other}) ASSERT_EQ(client->wait(0, 1), Code::kOk);
  expect_sum(other, 1);
}

// Contributions that are made wide first, as where another host adds up those of several ranks.
TEST_P(Parts, AreAwaitedWhereContributionsAreMadeWide) {
  rails_ = GetParam();
  protocol::PlanTensor t = allreduce(kLong, Dtype::kBfloat16);
  t.fp32_contributions = true;
  start(2, 1, {t});
  constexpr std::uint16_t kOne = 0x3f80, kTwo = 0x4000;
  const auto all_are = [](FakeClient& client, std::uint16_t value) {
    return std::ranges::all_of(std::span(client.data<std::uint16_t>(0), kLong), [=](auto v) { return v == value; });
  };
  each_client([&](FakeClient& client, std::uint32_t) { client.submit_parts(0, 1, {0, 1}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  each_client([&](FakeClient& client, std::uint32_t) {
    std::ranges::fill(std::span(client.data<std::uint16_t>(0), kLong), kOne);
    client.submit(0, 1);
  });
  each_client([&](FakeClient& client, std::uint32_t) {
    ASSERT_EQ(client.wait(0, 1), Code::kOk);
    EXPECT_TRUE(all_are(client, kTwo));
    EXPECT_TRUE(client.in_place().empty());
  });
}

class OrderedParts : public PartsTest, public ::testing::WithParamInterface<protocol::Ordering> {};

// What is told of an operation that waits for its turn is not lost, and goes nowhere before.
TEST_P(OrderedParts, AreKeptUntilItsTurn) {
  plan_.ordering = GetParam();
  plan_.concurrent = 1;
  start(2, 1, {allreduce(100), allreduce(kLong)}, seconds(10), {kLong * sizeof(float), 0});
  for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
    each_client([&](FakeClient& client, std::uint32_t rank) {
      spoil(client);
      for (const PartRun run : {PartRun{2, 6}, PartRun{40, 1}}) {
        make(client, rank, run);
        client.submit_parts(1, sequence, run);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      for (const PartRun run : {PartRun{0, 2}, PartRun{8, 32}, PartRun{41, kParts - 41}}) make(client, rank, run);
      if (rank == 0) client.submit(1, sequence);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    each_client([&](FakeClient& client, std::uint32_t rank) {
      client.submit(0, sequence);
      if (rank == 1) client.submit(1, sequence);
    });
    each_client([&](FakeClient& client, std::uint32_t) {
      ASSERT_EQ(client.wait(0, sequence), Code::kOk);
      ASSERT_EQ(client.wait(1, sequence), Code::kOk);
      expect_sum(client, 2);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, OrderedParts,
                         ::testing::Values(protocol::Ordering::kFunnel, protocol::Ordering::kConcurrent,
                                           protocol::Ordering::kChained, protocol::Ordering::kCounters,
                                           protocol::Ordering::kNegotiated),
                         [](const auto& of) { return std::string(protocol::ordering_name(of.param)); });

// Where buffers are added on the host first, parts are only hints: all of them is awaited.
TEST_P(Parts, AreAwaitedWhereAHostHasSeveralRanks) {
  rails_ = GetParam();
  begin(2, 2);
  each_client([&](FakeClient& client, std::uint32_t rank) {
    spoil(client);
    make(client, rank, {5, 6});
    client.submit_parts(0, 1, {5, 6});
    make(client, rank, {0, 5});
    client.submit_parts(0, 1, {0, 5});
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  each_client([&](FakeClient& client, std::uint32_t rank) {
    EXPECT_TRUE(client.pending(0, 1));
    make(client, rank, {11, kParts - 11});
    client.submit(0, 1);
  });
  each_client([&](FakeClient& client, std::uint32_t) {
    ASSERT_EQ(client.wait(0, 1), Code::kOk);
    expect_sum(client, 4);
    EXPECT_TRUE(client.in_place().empty());
  });
}

TEST_P(Parts, AJobOfOneHostDoesWithoutThem) {
  rails_ = GetParam();
  begin(1, 1);
  make(*hosts_[0]->clients[0], 0, {0, kParts});
  hosts_[0]->clients[0]->submit_parts(0, 1, {0, 1});
  hosts_[0]->clients[0]->submit(0, 1);
  ASSERT_EQ(hosts_[0]->clients[0]->wait(0, 1), Code::kOk);
  expect_sum(*hosts_[0]->clients[0], 1);
}

struct Wrong {
  const char* name;
  std::vector<protocol::SubmissionEntry> entries;
  const char* what;
};

protocol::SubmissionEntry parts(std::uint64_t sequence, const PartRun& run) {
  return {0, protocol::kFlagParts, protocol::with_parts(sequence, run)};
}

class WrongParts : public PartsTest, public ::testing::WithParamInterface<Wrong> {};

TEST_P(WrongParts, EndTheJobWithWhatIsWrong) {
  begin();
  for (const protocol::SubmissionEntry& entry : GetParam().entries) hosts_[0]->clients[0]->put(entry);
  EXPECT_THAT(hosts_[0]->listener.wait_failed().what(), ::testing::HasSubstr(GetParam().what));
}

INSTANTIATE_TEST_SUITE_P(
    Entries, WrongParts,
    ::testing::Values(
        Wrong{"BehindTheLastOne", {parts(1, {kParts, 1})}, "a part that is not in its tensor"},
        Wrong{"MoreThanThereAre", {parts(1, {1, kParts})}, "a part that is not in its tensor"},
        Wrong{"None", {parts(1, {3, 0})}, "a part that is not in its tensor"},
        Wrong{"Twice", {parts(1, {3, 4}), parts(1, {6, 1})}, "a part twice: tensor 0, sequence 1, 1 parts from 6 on"},
        Wrong{"AfterTheRest", {parts(1, {3, 4}), {0, 0, 1}, parts(1, {7, 1})}, "a part twice"},
        Wrong{"OfALaterOperation", {parts(2, {0, 1})}, "a part of an operation out of sequence"},
        Wrong{"OfTwoAtOnce", {parts(1, {0, 1}), parts(2, {0, 1})}, "a part of an operation out of sequence"},
        Wrong{"TwoRests", {parts(1, {0, 1}), {0, 0, 1}, {0, 0, 1}}, "an operation twice"}),
    [](const auto& info) { return info.param.name; });

TEST_P(Parts, WhoHasBegunAndDoesNotGoOnIsLate) {
  rails_ = GetParam();
  begin(2, 1, protocol::Pattern::kParameterServer, milliseconds(200));
  for (auto& host : hosts_) make(*host->clients[0], 0, {0, kParts});
  hosts_[0]->clients[0]->submit(0, 1);
  hosts_[1]->clients[0]->submit_parts(0, 1, {0, 63});
  EXPECT_EQ(hosts_[1]->listener.wait_late(), std::pair(Rank(1), TensorId(0)));
  EXPECT_EQ(hosts_[0]->listener.late(), 0U);
  hosts_[1]->clients[0]->submit(0, 1);
  EXPECT_EQ(hosts_[0]->clients[0]->wait(0, 1), Code::kOk);
}

// A broadcast's receiver has nothing that anybody needs: the operation is over between the hosts before it has said the
// rest, and completes with that.
TEST_P(Parts, AnOperationCompletesWhenTheRestIsSaid) {
  rails_ = GetParam();
  protocol::PlanTensor t = allreduce(kLong, Dtype::kFloat32, protocol::Pattern::kTree);
  t.operation = Operation::kBroadcast;
  start(2, 1, {t});
  FakeClient& root = *hosts_[0]->clients[0];
  FakeClient& other = *hosts_[1]->clients[0];
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    make(root, 0, {0, kParts});
    root.submit(0, sequence);
    other.submit_parts(0, sequence, {0, 1});
    ASSERT_EQ(root.wait(0, sequence), Code::kOk);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_TRUE(other.pending(0, sequence));
    other.submit(0, sequence);
    ASSERT_EQ(other.wait(0, sequence), Code::kOk);
    expect_sum(other, 1);
  }
}

TEST_F(PartsTest, ABarrierHasNone) {
  protocol::PlanTensor t;
  t.operation = Operation::kBarrier;
  start(2, 1, {t});
  hosts_[0]->clients[0]->put(parts(1, {0, 1}));
  EXPECT_THAT(hosts_[0]->listener.wait_failed().what(), ::testing::HasSubstr("a part of a barrier"));
}

// Nobody waits for a part that never comes: the job can be ended.
TEST_P(Parts, AnAbortInTheMiddleEndsIt) {
  rails_ = GetParam();
  begin();
  each_client([&](FakeClient& client, std::uint32_t rank) {
    make(client, rank, {0, 16});
    client.submit_parts(0, 1, {0, 16});
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (auto& host : hosts_) {
    ASSERT_TRUE(host->lane->abort_job(kJob, {Code::kAborted, "the test has had enough", "here", ""}).ok());
  }
  each_client(
      [](FakeClient& client, std::uint32_t) { EXPECT_EQ(client.wait_failure().what(), "the test has had enough"); });
}

INSTANTIATE_TEST_SUITE_P(Rails, Parts, ::testing::Values(1, 2));

}  // namespace
}  // namespace tensorlane::lane
