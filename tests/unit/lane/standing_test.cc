// A flow that stands still holds nobody back (law 21).
#include "played_network.h"

namespace tensorlane::lane {
namespace {

class Standing : public PlayedNetwork {
 protected:
  // Every job broadcasts so many bytes of bulk to one peer.
  static constexpr std::uint64_t kEach = 8 << 20;
  std::shared_ptr<Client> begin(JobId id) {
    const auto client = add_job(id, 2, 1, {tensor(Operation::kBroadcast, kEach / sizeof(float), 65536, kBulk)}).front();
    peers_ready(id, 2, 0);
    settle();
    client->submit({{0, 0, 1}});
    return client;
  }
  std::uint64_t sent(JobId id) {
    std::uint64_t bytes = 0;
    for (const Left& l : transport_->left()) bytes += l.flow.job == id ? l.header.payload_bytes : 0;
    return bytes;
  }
};

TEST_F(Standing, AJobWhosePeerTakesNothingHoldsNoOtherJobBack) {
  constexpr Bytes kWindow = kib(700);
  start(windows(kWindow));
  transport_->stand(JobId(1));
  const auto first = begin(JobId(1));
  wait([&] { return sent(JobId(1)) + kMaxOperation.value > kWindow.value; });
  const auto second = begin(JobId(2));
  wait([&] { return second->completed().size() == 1; });
  // Where it stands, it is given no more than the window that it filled.
  EXPECT_LE(sent(JobId(1)), kWindow.value);
  EXPECT_TRUE(first->completed().empty());
  // What moves again goes on to its end.
  transport_->move(JobId(1));
  wait([&] { return first->completed().size() == 1; });
}

TEST_F(Standing, OnePeerThatTakesNothingHoldsNoJobOfManyBack) {
  start(windows(kib(700)));
  std::vector<std::shared_ptr<Client>> culprits;
  for (std::uint64_t j = 1; j <= 4; ++j) {
    transport_->stand(JobId(j));
    culprits.push_back(begin(JobId(j)));
  }
  const auto last = begin(JobId(5));
  wait([&] { return last->completed().size() == 1; });
  for (std::uint64_t j = 1; j <= 4; ++j) {
    EXPECT_LE(sent(JobId(j)), kib(700).value);
    transport_->move(JobId(j));
  }
  for (const auto& culprit : culprits) wait([&] { return culprit->completed().size() == 1; });
}

}  // namespace
}  // namespace tensorlane::lane
