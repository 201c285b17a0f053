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

inline constexpr Slot kControl = 0, kUrgent = 1, kBulk = 2;

struct PathOptions {
  BitsPerSecond rate{1'000'000'000};
  Duration delay = microseconds(20);
  Duration jitter{};                                   // each packet up to so much later
  double loss = 0, twice = 0, damage = 0, forged = 0;  // of packets; forged ones come beside
  double marks = 0;                                    // of packets
  DataProtection level = DataProtection::kNone;
  std::uint8_t classes = 2;
  bool attach = true;    // all classes, at the begin and by restart()
  bool gathers = false;  // packets of data borrow payloads, which are read when the link has sent them
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

  struct Host;
  Host& host(int i) { return *hosts_[i]; }
  Time now() const { return now_; }
  // Sends a frame of that many bytes, if there is room for one.
  bool send(int from, Slot slot, std::size_t bytes);
  // Until `done`, or that much time has passed. False then.
  bool run(Duration time, const std::function<bool()>& done);
  // Opens and closes a class at one host. What is sent in it then is another End's, at the other host too, as soon as
  // that has heard of it.
  void attach(int host, Slot slot);
  void close(int host, Slot slot);
  // All classes are open at both hosts.
  bool open() const;
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
  struct Both;
  std::uint64_t contents_of(int sender, int host, Slot slot) const;
  void renew(int host, Slot slot);
  void pump(int from);
  std::size_t gather(int from, Slot slot, std::span<std::byte> packet);
  void put(int from, std::span<const std::byte> packet);
  void arrive(const Flight& flight);
  double draw() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  const PathOptions options_;
  std::mt19937_64 random_;
  Time now_{1000};
  std::array<std::unique_ptr<Host>, 2> hosts_;
  std::array<Time, 2> free_at_{};  // when the host's link has room for the next packet
  std::multimap<Time, Flight> flying_;
  std::array<std::deque<std::pair<Slot, std::uint64_t>>, 2> borrowing_;  // packets that the host's link is sending
  unsigned incarnation_ = 0;
  std::set<std::tuple<int, Slot, std::uint64_t>> numbers_;  // of packets of this incarnation, by sender
  bool reused_ = false;
};

// One of the two, and what its association tells.
struct Path::Host final : AssociationOwner {
  Host(Path& path, int index);
  ~Host() override;
  void on_open(Slot slot) override;
  void on_closed(Slot slot, const Status& cause) override;
  void on_credit() override {}

  Path& path;
  const int index;
  Credits credits;
  std::unique_ptr<Association> association;
  std::vector<std::unique_ptr<End>> sends, receives;   // by slot: the ends of what it sends, and of what comes
  std::vector<std::unique_ptr<Both>> sinks;            // by slot
  std::vector<std::vector<std::unique_ptr<End>>> old;  // by slot: what packets may borrow of
  std::array<unsigned, kSlots> opened{}, closed{};     // how often it was told
  std::string wrong;                                   // of ends that are gone
  Status failed;                                       // take() or on_time() has ended it
};

}  // namespace tensorlane::datagram::test
