// The listening socket of one class and the connections that have not proved themselves yet.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "daemon/transport/handshake/connection.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/handshake/watched.h"

namespace tensorlane::handshake {

// Connections of one listener that may be without a proof of their key at a time: of one address, and of all together.
// One more drops one of that address, or of all: the oldest that has said nothing, else the oldest whose hello has not
// been right, else the oldest. So who floods the port drops connections of its own.
inline constexpr std::size_t kMaxUnauthenticatedPerAddress = 64;
inline constexpr std::size_t kMaxUnauthenticated = 256;
// Connections accepted by one listener in one poll.
inline constexpr std::size_t kAcceptsPerPoll = 64;

class Listener final : public Watched {
 public:
  ~Listener() override;
  // Tagged before listen(), because accepted sockets take the listener's TOS (law 15). Errors: kUnavailable for a port
  // in use, kInvalidArgument for an address that this host does not have.
  // The file of a Unix socket that nobody serves any more is replaced; it goes with the listener.
  static Result<std::unique_ptr<Listener>> open(const Endpoint& endpoint, const ports::ClassTag& tag, Bytes window);

  int fd() const { return socket_.get(); }
  const ports::ClassTag& tag() const { return tag_; }

  // The next connection, tagged and tuned; an invalid Fd when there is none. Errors: kResourceExhausted when this
  // process has no descriptor for it.
  Result<Fd> accept();

  // Oldest first. Of those whose peer is known there is one for each flow at most.
  std::list<std::unique_ptr<Connection>> pending;
  bool paused = false;  // not in the epoll set until there are descriptors again

  // The one to drop to make room, of this address or, when that is empty, of all. end() when all have proved
  // themselves.
  std::list<std::unique_ptr<Connection>>::iterator victim(std::string_view address = {});
  // Whether all that have not proved themselves, or those of the address, are as many as may be. Unix sockets have no
  // address.
  bool full() const;
  bool full_for(std::string_view address) const;

 private:
  Listener(Fd socket, const ports::ClassTag& tag, Bytes window, std::string path)
      : Watched(Kind::kListener), socket_(std::move(socket)), tag_(tag), window_(window), path_(std::move(path)) {}

  Fd socket_;
  const ports::ClassTag tag_;
  const Bytes window_;
  const std::string path_;  // of a Unix socket
};

}  // namespace tensorlane::handshake
