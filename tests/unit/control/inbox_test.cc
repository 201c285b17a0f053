#include "daemon/control/inbox.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <thread>
#include <vector>

namespace tensorlane::control {
namespace {

bool readable(const Inbox& inbox) {
  pollfd wake{inbox.wake_fd(), POLLIN, 0};
  return ::poll(&wake, 1, 0) == 1;
}

// Between two slices control says that it lives.
TEST(Inbox, runs_in_order_and_no_longer_than_its_slice) {
  Inbox inbox;
  std::vector<int> done;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(inbox.request([&done, i] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      done.push_back(i);
    }));
  }
  inbox.run(milliseconds(10));
  EXPECT_EQ(done, std::vector<int>({0}));
  EXPECT_TRUE(readable(inbox)) << "what is left shall not wait for something new";
  inbox.event([&done] { done.push_back(3); });
  inbox.run(seconds(60));
  EXPECT_EQ(done, std::vector<int>({0, 1, 2, 3}));
  EXPECT_FALSE(readable(inbox));
}

TEST(Inbox, refuses_requests_and_takes_events_when_it_is_full) {
  Inbox inbox;
  std::size_t count = 0;
  for (std::size_t i = 0; i < Inbox::kMaxRequests; ++i) ASSERT_TRUE(inbox.request([&count] { ++count; }));
  EXPECT_FALSE(inbox.request([] { FAIL(); }));
  inbox.event([&count] { ++count; });
  inbox.run(seconds(60));
  EXPECT_EQ(count, Inbox::kMaxRequests + 1);
}

}  // namespace
}  // namespace tensorlane::control
