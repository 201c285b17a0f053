// Notes between lanes: none overtakes another, none waits for good, and whoever sleeps is woken.
#include "daemon/lane/links.h"

#include <poll.h>

#include "daemon/lane/loop.h"
#include "played_network.h"

namespace tensorlane::lane {
namespace {

constexpr std::uint64_t kMany = 10'000;  // more than two lanes' queue has room for

class LinksTest : public ::testing::Test {
 protected:
  void make(std::size_t lanes) {
    auto made = Switchboard::create(lanes);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    board_ = std::move(*made);
  }
  void post(std::size_t from, std::size_t to, std::uint64_t number) {
    board_->of(from).post(to, {JobId(1), Epoch(1), from, host::StartNote{TensorId(0), Sequence(number)}});
  }
  // 0: there is none.
  std::uint64_t take(std::size_t lane, std::size_t* from = nullptr) {
    host::Note note;
    if (!board_->of(lane).take(&note)) return 0;
    if (from != nullptr) *from = note.from;
    return std::get<host::StartNote>(note.what).sequence.value;
  }
  // Something has been written to the descriptor since it was last looked.
  bool woken(std::size_t lane) {
    pollfd wait{board_->of(lane).wake_fd(), POLLIN, 0};
    return ::poll(&wait, 1, 0) == 1;
  }
  std::unique_ptr<Switchboard> board_;
};

TEST_F(LinksTest, NoNoteOvertakesThoseThatHadNoRoom) {
  make(2);
  std::uint64_t posted = 0, taken = 0;
  while (posted < kMany) post(0, 1, ++posted);
  for (; taken < posted; ++taken) {
    if (taken % 100 == 0) board_->of(0).push_on();
    ASSERT_EQ(take(1), taken + 1);
    if (posted < 2 * kMany) post(0, 1, ++posted);  // there is room, but others wait for it
  }
  EXPECT_FALSE(board_->of(0).push_on());
}

TEST_F(LinksTest, WhoHoldsANoteForAnyLaneIsNotToSleep) {
  make(3);
  for (std::uint64_t i = 1; i <= kMany; ++i) post(0, 1, i);
  post(0, 2, 1);
  EXPECT_TRUE(board_->of(0).push_on());
  EXPECT_EQ(take(2), 1u);
  for (std::uint64_t i = 1; i <= kMany; ++i) {
    if (i % 100 == 0) board_->of(0).push_on();
    ASSERT_EQ(take(1), i);
  }
  EXPECT_FALSE(board_->of(0).push_on());
}

TEST_F(LinksTest, WhoSleepsIsWokenByTheNextNote) {
  make(2);
  EXPECT_TRUE(board_->of(1).arm());
  EXPECT_FALSE(woken(1));
  post(0, 1, 1);
  EXPECT_TRUE(woken(1));
  EXPECT_FALSE(board_->of(1).arm()) << "there is a note";
  EXPECT_EQ(take(1), 1u);
  EXPECT_TRUE(board_->of(1).arm());
}

// Whoever waits for a long queue to be pushed on, too.
TEST_F(LinksTest, ANoteThatHadNoRoomWakes) {
  make(2);
  for (std::uint64_t i = 1; i <= kMany; ++i) post(0, 1, i);
  std::uint64_t taken = 0;
  while (take(1) != 0) ++taken;
  ASSERT_LT(taken, kMany);
  EXPECT_TRUE(board_->of(1).arm());
  board_->of(0).push_on();
  EXPECT_TRUE(woken(1));
}

TEST_F(LinksTest, ALaneThatSaysMuchKeepsNoOtherUnheard) {
  make(3);
  for (std::uint64_t i = 1; i <= 100; ++i) post(0, 2, i);
  post(1, 2, 1);
  std::size_t from = 0;
  for (int i = 0; i < 3 && from != 1; ++i) ASSERT_NE(take(2, &from), 0u);
  EXPECT_EQ(from, 1u);
}

// Here is lane 1, which takes nothing at first: nobody tells lane 0 when there is room.
TEST_F(PlayedNetwork, ALaneThatHoldsANoteDoesNotSleep) {
  LaneConfig config = windows(mib(1));
  config.classes = 1;
  auto made = Switchboard::create(2);
  ASSERT_TRUE(made.ok());
  const std::unique_ptr<Switchboard> board = std::move(*made);
  const host::HostPorts ports{
      &regions_,
      &executor_,
      &metrics_,
      &timeline_,
      [](RailIndex, ports::FlowOwner& owner) -> Result<std::unique_ptr<ports::Transport>> {
        return std::unique_ptr<ports::Transport>(std::make_unique<FakeTransport>(owner, [] { return mib(1).value; }));
      },
      {},
      &scratch_,
      nullptr,
      &descriptors_};
  Loop loop(config, ports, board->of(0), {[](const std::shared_ptr<void>&) {}, [](JobId, Epoch) {}});
  ASSERT_TRUE(loop.open().ok());
  for (std::uint64_t i = 1; i <= kMany; ++i)
    board->of(0).post(1, {JobId(1), Epoch(1), 0, host::StartNote{TensorId(0), Sequence(i)}});
  loop.start(listener_);
  wait([&] { return metrics_.loops.value() > 100; });
  EXPECT_EQ(metrics_.sleeps.value(), 0u);
  std::uint64_t taken = 0;
  wait([&] {
    for (host::Note note; board->of(1).take(&note);) ++taken;
    return taken == kMany;
  });
  wait([&] { return metrics_.sleeps.value() > 0; });
  loop.stop();
}

}  // namespace
}  // namespace tensorlane::lane
