// A host, its peers, and what lies between them, under a virtual clock: packets wait, are lost, overtake each other,
// come twice, are damaged, and strangers add their own; flows go, and others take their places. Everything follows from
// a seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/transport/datagram/association.h"

namespace tensorlane::datagram::test {

inline constexpr Slot kControl = 0, kUrgent = 1, kBulk = 2;

struct PathOptions {
  BitsPerSecond rate{1'000'000'000};
  Duration delay = microseconds(20);
  Duration jitter{};                                   // each packet up to so much later
  double loss = 0, twice = 0, damage = 0, forged = 0;  // of packets; forged ones come beside
  double marks = 0;                                    // of packets
  DataProtection level = DataProtection::kNone;
  unsigned peers = 1;        // of host 0, each with a flow in every class
  std::uint8_t classes = 2;  // of data, beside control
  bool drops = false;        // of some flows every few payloads are dropped
  bool gathers = false;      // packets of data borrow payloads, which are read when the link has sent them
  std::uint64_t seed = 1;
  Credits::Options credits;  // of each host's port
  AssociationConfig config;  // what is not above
};

// The frames that one end of a flow sends, or that come to it. Checks every byte, their order, and that none comes
// twice.
class Frames : public ports::FrameSink {
 public:
  Frames(std::uint64_t seed, Slot slot) : seed_(seed), slot_(slot) {}

  // A frame of so many bytes, whose contents follow from its number. The payload is kept until it is sent.
  ports::Outgoing next(std::size_t bytes);
  // It lies in a payload that is kept.
  bool keeps(std::span<const std::byte> part) const;
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

  // One end of a flow, which has an association for as long as it is there.
  struct Flow;
  // Of the flow in that class between host 0 and a peer the end at host 0, or that at the peer (1).
  Flow& at(int end, Slot slot, unsigned peer = 1) { return *pair(slot, peer).ends[end]; }
  bool has(int end, Slot slot, unsigned peer) { return pair(slot, peer).ends[end] != nullptr; }
  // Those that are there, of all hosts.
  std::vector<Flow*> flows();
  // All are there, at both ends.
  bool complete();
  Time now() const { return now_; }
  // Until `done`, or that much time has passed. False then.
  bool run(Duration time, const std::function<bool()>& done);
  // The flow goes, first at this end, and after a while both have another one in its place, with keys and frames of its
  // own, and with the old number or another one. What is on its way still arrives. Its both ends are there.
  void restart(Flow& flow, Duration after);
  // All that was given to flows that are there has come, and both ends know.
  bool settled();
  // What is wrong with anything that came; empty: nothing.
  std::string wrong() const;
  double loss = 0;  // as in the options; may be changed

  std::uint64_t packets = 0;  // that have gone into the network

 private:
  struct Sending;
  struct Host;
  // A flow, and those that had its place before.
  struct Pair {
    unsigned peer = 0;
    Slot slot = 0;
    std::uint32_t incarnation = 0;           // counts over all pairs
    std::array<std::uint32_t, 2> numbers{};  // at which the ends receive
    std::array<Flow*, 2> ends{};             // null while it is not there
  };
  struct Flight {
    std::vector<std::byte> bytes;
    unsigned to = 0;
    bool marked = false;
  };
  Pair& pair(Slot slot, unsigned peer) { return pairs_[(peer - 1) * (options_.classes + 1u) + slot]; }
  void renew(Pair& pair);
  void make(Pair& pair, int end);
  void remove(Pair& pair, int end);
  void pump(Host& host);
  bool next_packet(Host& host, Sending* packet);
  void leave(const Sending& packet);
  void put(const Flow& from, std::vector<std::byte> packet);
  void fly(const Flow& from, std::vector<std::byte> packet);
  void arrive(Flight& flight);
  Time next_event(Time end);
  double draw() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  const PathOptions options_;
  std::mt19937_64 random_;
  Time now_{1000};
  std::deque<Host> hosts_;
  std::vector<Pair> pairs_;
  std::vector<std::unique_ptr<Flow>> flows_;  // those that have gone, too: nobody may call them
  std::multimap<Time, std::function<void()>> later_;
  std::uint32_t incarnations_ = 0, numbers_ = 0;
};

struct Path::Flow final : ports::FrameSink, CreditHolder {
  Flow(const Pair& pair, unsigned at_host, int which_end, std::uint64_t seed);
  // Sends a frame of that many bytes, if there is room for one.
  bool send(std::size_t bytes);
  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override {
    return receives.on_header(header);
  }
  void on_frame(const protocol::FrameHeader& header) override { receives.on_frame(header); }
  void on_sent(std::uint64_t token) override { sends.on_sent(token); }
  void credit_raised() override;

  const unsigned host, peer;
  const int end;
  const Slot slot;
  std::unique_ptr<Association> association;        // null: it has gone
  Frames sends, receives;                          // what it sends, and what comes
  std::set<std::pair<Slot, std::uint64_t>> heads;  // of packets that it has made
  Status failed;                                   // take() or on_time() has ended it
  std::string wrong;
};

}  // namespace tensorlane::datagram::test
