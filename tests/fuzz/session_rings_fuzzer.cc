// A client that writes anything anywhere into its rings, between the calls of the daemon. The daemon must take exactly
// the entries that its own position and the client's index name, refuse an index that cannot be, and never lose its
// own place.
//
// Input: the size of the rings, then records. A record is a kind and its numbers (see act()).
#include <array>
#include <cstring>
#include <vector>

#include "daemon/session/rings.h"
#include "input.h"

namespace tensorlane::fuzz {
namespace {

using protocol::CompletionEntry;
using protocol::RingPage;
using protocol::SubmissionEntry;

constexpr std::size_t kMaxEntries = 64;
struct alignas(4096) Memory {
  std::array<std::byte, protocol::ring_memory_bytes(kMaxEntries)> bytes;
};

class Client {
 public:
  Client(Memory& memory, std::uint32_t entries)
      : memory_(std::span(memory.bytes).first(protocol::ring_memory_bytes(entries))),
        entries_(entries),
        rings_(memory_, entries),
        page_(*reinterpret_cast<RingPage*>(memory.bytes.data())) {}

  void act(Input& input) {
    switch (input.take<std::uint8_t>() % 8) {
      case 0:
        page_.submitted += input.take<std::uint8_t>();
        break;
      case 1:
        page_.submitted = input.take<std::uint32_t>();
        break;
      case 2:
        page_.consumed += input.take<std::uint8_t>();
        break;
      case 3:
        scribble(input);
        break;
      case 4:
        take(input.take<std::uint8_t>() % (kMaxEntries + 1));
        break;
      case 5:
        complete(input.take<CompletionEntry>());
        break;
      case 6:
        sleep();
        break;
      case 7:
        fail(input);
        break;
    }
  }

 private:
  void scribble(Input& input) {
    const std::size_t at = input.take<std::uint16_t>() % memory_.size();
    const auto bytes = input.bytes(input.take<std::uint8_t>());
    std::memcpy(memory_.data() + at, bytes.data(), std::min(bytes.size(), memory_.size() - at));
  }

  void take(std::size_t most) {
    std::array<SubmissionEntry, kMaxEntries> out;
    const std::uint32_t ready = page_.submitted - taken_;
    const Result<std::size_t> count = rings_.take(std::span(out).first(most));
    TL_ASSERT(count.ok() == (ready <= entries_));
    if (!count.ok()) return expect_explained(count.status());
    TL_ASSERT(*count == std::min<std::size_t>(ready, most));
    for (std::size_t i = 0; i < *count; ++i) {
      const std::size_t slot = (taken_ + i) % entries_;
      TL_ASSERT(std::memcmp(&out[i], memory_.data() + protocol::kRingPageBytes + slot * 16, 16) == 0);
    }
    taken_ += static_cast<std::uint32_t>(*count);
    TL_ASSERT(*count == 0 || page_.taken == taken_);
  }

  void complete(const CompletionEntry& entry) {
    const bool room = completed_ - page_.consumed < entries_;
    const Status status = rings_.complete(entry);
    TL_ASSERT(status.ok() == room);
    if (!status.ok()) return expect_explained(status);
    const std::size_t slot = entries_ + completed_ % entries_;
    TL_ASSERT(std::memcmp(&entry, memory_.data() + protocol::kRingPageBytes + slot * 16, 16) == 0);
    TL_ASSERT(page_.completed == ++completed_);
  }

  void sleep() {
    const bool nothing_waits = page_.submitted == taken_;
    TL_ASSERT(rings_.arm_wake() == nothing_waits);
    TL_ASSERT(page_.daemon_sleeping == (nothing_waits ? 1u : 0u));
    rings_.disarm_wake();
    TL_ASSERT(page_.daemon_sleeping == 0);
  }

  void fail(Input& input) {
    const auto bytes = input.bytes(input.take<std::uint16_t>());
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    rings_.fail(Status(Code::kAborted, text, text, text));
    TL_ASSERT(page_.failed == 1 && page_.error.code == Code::kAborted);
    expect_cut(page_.error.what, text);
    expect_cut(page_.error.where, text);
    expect_cut(page_.error.fix, text);
  }
  // All of the text where it fits; else as many bytes as fit, at most three fewer where a character would be torn.
  template <std::size_t kRoom>
  static void expect_cut(const char (&field)[kRoom], const std::string& text) {
    TL_ASSERT(std::memchr(field, '\0', kRoom) != nullptr);
    if (text.find('\0') != text.npos) return;
    const std::string cut(field);
    TL_ASSERT(text.starts_with(cut));
    TL_ASSERT(text.size() >= kRoom || cut.size() == text.size());
  }

  const std::span<std::byte> memory_;
  const std::uint32_t entries_;
  session::DaemonRings rings_;
  RingPage& page_;
  std::uint32_t taken_ = 0, completed_ = 0;
};

}  // namespace
}  // namespace tensorlane::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  fuzz::Input input(data, size);
  static fuzz::Memory memory;
  std::memset(&memory, 0, sizeof memory);
  fuzz::Client client(memory, 1u << input.take<std::uint8_t>() % 7);
  while (!input.empty()) client.act(input);
  return 0;
}
