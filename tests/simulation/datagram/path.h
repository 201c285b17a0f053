// Two hosts and what lies between them, under a virtual clock: packets wait, are lost, overtake each other, come twice,
// are damaged, and strangers add their own. Everything follows from a seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "daemon/transport/datagram/association.h"

namespace tensorlane::datagram::test {

struct PathOptions {
  BitsPerSecond rate{1'000'000'000};
  Duration delay = microseconds(20);
  Duration jitter{};                                   // each packet up to so much later
  double loss = 0, twice = 0, damage = 0, forged = 0;  // of packets; forged ones come beside
  double marks = 0;                                    // of packets
  DataProtection level = DataProtection::kNone;
  std::uint8_t classes = 2;
  std::uint64_t seed = 1;
  Credits::Options credits;
  AssociationConfig config;  // what is not above
};

// One end: what it sends, and what must come. Checks every byte, the order of frames, and that no frame comes twice.
class End : public ports::FrameSink {
 public:
  End(std::uint64_t seed, Slot slot) : seed_(seed), slot_(slot) {}

  // A frame of so many bytes, whose contents follow from its number. The payload is kept until it is sent.
  ports::Outgoing next(std::size_t bytes);
  std::uint64_t given() const { return given_; }
  std::uint64_t sent() const { return sent_; }            // on_sent() for so many
  std::uint64_t delivered() const { return delivered_; }  // to this end
  std::string wrong() const { return wrong_; }            // empty: nothing
  std::uint64_t drops = 0;                                // every so manyth payload is dropped: 0, none

  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override;
  void on_frame(const protocol::FrameHeader& header) override;
  void on_sent(std::uint64_t token) override;

 private:
  std::vector<std::byte> contents(std::uint64_t number, std::size_t bytes) const;
  bool dropped(std::uint64_t number) const { return drops != 0 && number % drops == drops - 1; }

  const std::uint64_t seed_;
  const Slot slot_;
  std::uint64_t given_ = 0, sent_ = 0, headers_ = 0, delivered_ = 0;
  std::map<std::uint64_t, std::vector<std::byte>> kept_, landing_;  // by number
  std::string wrong_;
};

class Path {
 public:
  explicit Path(const PathOptions& options);
  ~Path();

  struct Host {
    explicit Host(const Credits::Options& options) : credits(options) {}
    Credits credits;
    std::unique_ptr<Association> association;
    std::vector<std::unique_ptr<End>> sends, receives;  // by slot: the ends of what it sends, and of what comes
    Status failed;
  };
  Host& host(int i) { return *hosts_[i]; }
  Time now() const { return now_; }
  // Sends a frame of that many bytes, if there is room for one.
  bool send(int from, Slot slot, std::size_t bytes);
  // Until `done`, or that much time has passed. False then.
  bool run(Duration time, const std::function<bool()>& done);
  // Both hosts make the association anew, with other keys and frames. What is on its way still arrives.
  void restart();
  // All that was given has come, and both ends know.
  bool settled() const;
  // What is wrong with anything that came; empty: nothing.
  std::string wrong() const;
  double loss = 0;  // as in the options; may be changed

  std::uint64_t packets = 0;  // that have gone into the network

 private:
  struct Flight {
    std::vector<std::byte> bytes;
    int to = 0;
    bool marked = false;
  };
  // What a host's association and the sinks of one slot are to each other.
  struct Both;
  void pump(int from);
  void put(int from, std::span<const std::byte> packet);
  void arrive(const Flight& flight);
  double draw() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  const PathOptions options_;
  std::mt19937_64 random_;
  Time now_{1000};
  std::array<std::unique_ptr<Host>, 2> hosts_;
  std::vector<std::unique_ptr<Both>> sinks_;
  std::array<Time, 2> free_at_{};  // when the host's link has room for the next packet
  std::multimap<Time, Flight> flying_;
  unsigned incarnation_ = 0;
  std::set<std::tuple<int, Slot, std::uint64_t>> numbers_;  // of packets of this incarnation, by sender
  bool reused_ = false;
};

}  // namespace tensorlane::datagram::test
