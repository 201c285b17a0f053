// What a packet of a datagram association costs, made at one end and taken at the other, its share of acknowledgements
// and credit included, on one core and without any network.
//
//   datagram_bench [--rounds N] [--frames N]
//
// Every frame's payload is checked by its last bytes before a time is printed. Prints the median and the p99 of rounds
// in nanoseconds for each packet, and how often memory was allocated. Exit status 2 for a wrong result.
#include <fmt/format.h>
#include <sodium.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "daemon/transport/datagram/association.h"
#include "tests/allocations/allocation_count.h"

namespace tensorlane::datagram {
namespace {

struct Host final : CreditHolder, ports::FrameSink {
  Host(const AssociationConfig& config, std::size_t bytes)
      : place(bytes), credits({}), association(config, credits, *this, *this) {}
  void credit_raised() override {}
  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
    return std::span(place).first(header.payload_bytes);
  }
  void on_frame(const protocol::FrameHeader& header) override {
    std::uint64_t last = 0;
    std::memcpy(&last, place.data() + header.payload_bytes - sizeof last, sizeof last);
    if (last != come++) wrong = true;
  }
  void on_sent(std::uint64_t) override { ++sent; }

  std::vector<std::byte> place;
  Credits credits;
  Association association;
  std::uint64_t come = 0, sent = 0;
  bool wrong = false;
};

class Pair {
 public:
  Pair(DataProtection level, std::size_t packet_bytes)
      : payload_(kMaxOperation.value, std::byte{3}),
        here_(config(level, packet_bytes, 0), kMaxOperation.value),
        there_(config(level, packet_bytes, 1), kMaxOperation.value) {}

  // Sends so many frames. Returns how many packets carried them.
  std::uint64_t run(std::uint64_t frames) {
    const std::uint64_t before = packets_, end = here_.sent + frames;
    while (here_.sent < end) {
      // One frame at a time, since its last bytes say which one it is.
      if (given_ == here_.sent) {
        std::memcpy(payload_.data() + payload_.size() - sizeof given_, &given_, sizeof given_);
        here_.association.send({.header = {}, .payload = payload_, .token = ++given_});
      }
      turn();
    }
    return packets_ - before;
  }
  bool wrong() const { return here_.wrong || there_.wrong || there_.come != here_.sent; }

 private:
  static AssociationConfig config(DataProtection level, std::size_t packet_bytes, unsigned char end) {
    AssociationConfig config;
    config.job = JobId(1);
    config.slot = 1;
    config.packet_bytes = packet_bytes;
    config.level = level;
    if (level != DataProtection::kNone) config.cipher = protect::Cipher::kAes256Gcm;
    config.send_secret[0] = std::byte{end};
    config.receive_secret[0] = static_cast<std::byte>(1 - end);
    return config;
  }

  // As a port does it: a burst of packets, and what is said of them.
  void turn() {
    now_ = now_ + microseconds(2);
    pass(here_, there_, here_.association.make_ack(now_, packet_));
    for (int i = 0; i < 32 && pass(here_, there_, here_.association.make(now_, packet_)); ++i) ++packets_;
    there_.credits.give(now_);
    pass(there_, here_, there_.association.make_ack(now_, packet_));
    for (Host* host : {&here_, &there_})
      if (const auto due = host->association.deadline(); due && *due <= now_) (void)host->association.on_time(now_);
  }
  bool pass(Host& from, Host& to, std::size_t bytes) {
    if (bytes == 0) return false;
    if (!to.association.take(now_, std::span(packet_).first(bytes), false).ok()) from.wrong = true;
    return true;
  }

  Time now_{1000};
  std::vector<std::byte> payload_;
  Host here_, there_;
  alignas(64) std::array<std::byte, 9000> packet_;  // so that times do not depend on what stands before it
  std::uint64_t given_ = 0, packets_ = 0;
};

bool measure(const char* name, DataProtection level, std::size_t packet_bytes, int rounds, std::uint64_t frames) {
  Pair pair(level, packet_bytes);
  pair.run(frames);
  std::vector<double> each;
  std::uint64_t packets = 0;
  const std::uint64_t before = counting::allocations();
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t count = pair.run(frames);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    each.push_back(took.count() / static_cast<double>(count));
    packets += count;
  }
  const std::uint64_t allocated = counting::allocations() - before;
  if (pair.wrong()) {
    fmt::print(stderr, "tensorlane: error: datagram_bench: {}: frames are not what was sent\n", name);
    return false;
  }
  std::ranges::sort(each);
  fmt::print("{:<28} {:>5} bytes: median {:>6.0f} ns, p99 {:>6.0f} ns for each packet; {:.3f} allocations\n", name,
             packet_bytes, each[each.size() / 2], each[each.size() * 99 / 100],
             static_cast<double>(allocated) / static_cast<double>(packets));
  return true;
}

}  // namespace
}  // namespace tensorlane::datagram

int main(int argc, char** argv) {
  using namespace tensorlane;
  CLI::App app("What a packet of a datagram association costs.\nExample:\n  datagram_bench --rounds 50");
  int rounds = 50;
  std::uint64_t frames = 100;
  app.add_option("--rounds", rounds, "How often it is measured")->check(CLI::PositiveNumber);
  app.add_option("--frames", frames, "Frames of 256 KiB in each round")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (sodium_init() < 0) return 2;
  counting::count_allocations(counting::CountedThreads::kAll);
  bool right = true;
  for (const std::size_t bytes : {1400u, 8900u}) {
    right = datagram::measure("none (SipHash)", DataProtection::kNone, bytes, rounds, frames) && right;
    if (crypto_aead_aes256gcm_is_available() == 0) {
      fmt::print("AES-GCM: skipped, the processor does not have it\n");
      continue;
    }
    right = datagram::measure("encrypt (AES-256-GCM)", DataProtection::kEncrypt, bytes, rounds, frames) && right;
  }
  return right ? 0 : 2;
}
