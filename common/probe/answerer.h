// The receiving end of probes: listens on data ports, and tells whoever knows the token how its packets arrived.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/probe/capture.h"
#include "common/probe/exchange.h"
#include "common/probe/socket.h"

namespace tensorlane::probe {

// Fills in what the kernel says of the first packet of an accepted connection whose listener has asked for it by
// keep_first_packet(). No privilege is needed.
void keep_first_packet(int listener);
void read_first_packet(int connection, Answer* answer);

struct ListenAt {
  std::string address;  // numeric; never a wildcard
  std::uint16_t port = 0;
  Tag tag;  // of the answers
};

// Gives a connection that has said `hello` to an answerer at the other end of `channel`, a SOCK_SEQPACKET socket that
// does not block. The connection stays the caller's, too. False, with errno: the channel is full or gone.
bool hand_over(int channel, int connection, const Hello& hello);

inline constexpr int kChannel = 3;  // tensorlane-probe's, where it is started with one

// Bounds: connections at a time, and how long one may take to say its hello. Where there are too many, the oldest that
// has not said it gives way to the next.
inline constexpr std::size_t kMaxConnections = 512;
inline constexpr std::int64_t kHelloMilliseconds = 3000;

// One thread of its own, which ends with the object.
class Answerer {
 public:
  // `capture` may be null; it outlives the answerer. `channel`: where others hand connections over, -1 for none; it is
  // closed elsewhere.
  Answerer(const Token& token, Capture* capture, int channel = -1);
  ~Answerer();
  Answerer(const Answerer&) = delete;
  Answerer& operator=(const Answerer&) = delete;

  // Before start(). 0, or errno: EADDRINUSE where something listens there already.
  int listen_at(const ListenAt& at);
  void start();

 private:
  struct Connection;

  void run();
  void accept_all(int listener);
  // False: the channel's other end is gone.
  bool take_handed();
  void add(Socket socket, const Hello* hello);
  // False: it is over.
  bool serve(Connection& connection);
  bool take_hello(Connection& connection);
  bool greet(Connection& connection, const Hello& hello);
  bool take_burst(Connection& connection);
  bool take_messages(Connection& connection);

  const Token token_;
  Capture* const capture_;
  int channel_;
  std::vector<Socket> listeners_;
  std::list<std::unique_ptr<Connection>> connections_;
  Socket stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace tensorlane::probe
