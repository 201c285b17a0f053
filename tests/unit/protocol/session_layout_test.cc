#include <gtest/gtest.h>

#include <cstddef>

#include "common/protocol/session.h"

namespace tensorlane::protocol {
namespace {

// Clients without the library read these places by number: change tests/faults/session_client.py with them, and
// kSessionVersion.
TEST(SessionLayout, OfTheRingPageIsThatOfThisVersion) {
  EXPECT_EQ(kSessionVersion, 11);
  EXPECT_EQ(kRingPageBytes, 4096u);
  EXPECT_EQ(offsetof(RingPage, submitted), 0u);
  EXPECT_EQ(offsetof(RingPage, completed), 128u);
  EXPECT_EQ(offsetof(RingPage, consumed), 192u);
  EXPECT_EQ(offsetof(RingPage, daemon_sleeping), 256u);
  EXPECT_EQ(offsetof(RingPage, client_beats), 320u);
  EXPECT_EQ(offsetof(RingPage, failed), 448u);
  EXPECT_EQ(offsetof(RingPage, blocked_ns), 512u);
  EXPECT_EQ(offsetof(RingPage, waiter), 520u);
  EXPECT_EQ(offsetof(RingPage, error), 524u);
  EXPECT_EQ(offsetof(RingPage, stream_waits), 2624u);
}

}  // namespace
}  // namespace tensorlane::protocol
