#include "tampering_proxy.h"

#include <sys/socket.h>

#include <algorithm>
#include <random>
#include <stdexcept>

namespace tensorlane::conformance {
namespace {

// Turns without a byte after which nobody has anything more to say.
constexpr std::size_t kQuietTurns = 200;

handshake::Endpoint at_port(std::uint16_t port) {
  return *handshake::parse_endpoint("127.0.0.1", port);
}

}  // namespace

TamperingProxy::TamperingProxy(std::uint16_t listen_port, std::uint16_t target_port) : target_port_(target_port) {
  listener_ = handshake::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  const int on = 1;
  ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const auto endpoint = at_port(listen_port);
  if (::bind(listener_.get(), endpoint.get(), endpoint.length) != 0 || ::listen(listener_.get(), 64) != 0)
    throw std::runtime_error("proxy port in use");
}

void TamperingProxy::tamper_at_random(std::uint64_t seed, std::uint64_t client_handshake,
                                      std::uint64_t server_handshake, std::uint64_t among) {
  std::mt19937_64 random(seed);
  plan_.kind = static_cast<Tampering::Kind>(1 + random() % 7);
  plan_.to_target = random() % 2 == 0;
  // Often near the start, where the records are short.
  const std::uint64_t place = random() % 2 == 0 ? random() % 1200 : random() % among;
  plan_.at = (plan_.to_target ? client_handshake : server_handshake) + place;
  // Whole records of a header among them.
  constexpr std::size_t kBytes[] = {1, 16, 64, 80, 80, 160, 1000};
  plan_.bytes = kBytes[random() % std::size(kBytes)];
  if (plan_.bytes % 80 == 0 && random() % 2 == 0) plan_.at -= place % 80;
  plan_.bit = static_cast<unsigned>(random() % 8);
}

bool TamperingProxy::accept() {
  handshake::Fd near(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK));
  if (!near.valid()) return false;
  far_ = handshake::Fd(::socket(AF_INET, SOCK_STREAM, 0));
  const auto target = at_port(target_port_);
  if (::connect(far_.get(), target.get(), target.length) != 0) throw std::runtime_error("the target does not listen");
  near_ = std::move(near);
  directions_ = {};
  plan_ = {};
  quiet_ = 0;
  return true;
}

void TamperingProxy::pump() {
  accept();
  ++quiet_;
  for (const bool to_target : {true, false}) {
    if (near_.valid()) receive(to_target);
    if (near_.valid()) apply(to_target);
    if (near_.valid()) forward(to_target);
  }
}

bool TamperingProxy::stalled() const {
  return quiet_ > kQuietTurns;
}

void TamperingProxy::receive(bool to_target) {
  Direction& direction = directions_[to_target];
  std::array<std::byte, 65536> buffer;
  const ssize_t received = ::recv((to_target ? near_ : far_).get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (received < 0 && errno != EAGAIN) return reset();
  if (received == 0) direction.from_ended = true;
  if (received <= 0) return;
  quiet_ = 0;
  direction.seen.insert(direction.seen.end(), buffer.begin(), buffer.begin() + received);
}

void TamperingProxy::apply(bool to_target) {
  Direction& direction = directions_[to_target];
  const auto pass = [&](std::uint64_t to) {
    to = std::min<std::uint64_t>(to, direction.seen.size());
    direction.waiting.insert(direction.waiting.end(),
                             direction.seen.begin() + static_cast<std::ptrdiff_t>(direction.passed),
                             direction.seen.begin() + static_cast<std::ptrdiff_t>(to));
    direction.passed = to;
  };
  if (plan_.kind == Tampering::Kind::kNone || plan_.to_target != to_target) return pass(direction.seen.size());
  pass(std::max(plan_.at, direction.passed));
  const bool swaps = plan_.kind == Tampering::Kind::kSwap;
  const bool cuts = plan_.kind == Tampering::Kind::kEnd || plan_.kind == Tampering::Kind::kReset;
  const std::size_t needed = cuts ? 0 : plan_.bytes * (swaps ? 2 : 1);
  if (direction.passed < plan_.at || direction.seen.size() < plan_.at + needed) {
    if (quiet_ > kQuietTurns / 2 && !cuts) {  // as many never come
      plan_ = {};
      pass(direction.seen.size());
    }
    return;
  }
  const auto from = direction.seen.begin() + static_cast<std::ptrdiff_t>(plan_.at);
  const auto count = static_cast<std::ptrdiff_t>(plan_.bytes);
  std::vector<std::byte>& out = direction.waiting;
  const Tampering tampering = plan_;
  plan_ = {};
  ++done_;
  switch (tampering.kind) {
    case Tampering::Kind::kNone:
      break;
    case Tampering::Kind::kFlip:
      out.push_back(*from ^ static_cast<std::byte>(1u << tampering.bit));
      direction.passed += 1;
      break;
    case Tampering::Kind::kDrop:
      direction.passed += tampering.bytes;
      break;
    case Tampering::Kind::kRepeat:
      out.insert(out.end(), from, from + count);
      break;
    case Tampering::Kind::kSwap:
      out.insert(out.end(), from + count, from + 2 * count);
      out.insert(out.end(), from, from + count);
      direction.passed += 2 * tampering.bytes;
      break;
    case Tampering::Kind::kInsert:
      out.insert(out.end(), tampering.bytes, std::byte{0x5a});
      break;
    case Tampering::Kind::kEnd:
      direction.from_ended = true;
      direction.passed = direction.seen.size();
      return;
    case Tampering::Kind::kReset:
      return reset();
  }
  pass(direction.seen.size());
}

void TamperingProxy::insert(bool to_target, std::span<const std::byte> bytes) {
  std::vector<std::byte>& waiting = directions_[to_target].waiting;
  waiting.insert(waiting.end(), bytes.begin(), bytes.end());
}

void TamperingProxy::forward(bool to_target) {
  Direction& direction = directions_[to_target];
  const handshake::Fd& to = to_target ? far_ : near_;
  if (direction.ended) {
    direction.waiting.clear();
    return;
  }
  if (!direction.waiting.empty()) {
    const ssize_t sent =
        ::send(to.get(), direction.waiting.data(), direction.waiting.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return reset();
    if (sent > 0) direction.waiting.erase(direction.waiting.begin(), direction.waiting.begin() + sent);
  }
  if (direction.from_ended && direction.waiting.empty()) {
    ::shutdown(to.get(), SHUT_WR);
    direction.ended = true;
  }
}

void TamperingProxy::reset() {
  const linger off{1, 0};
  for (handshake::Fd* fd : {&near_, &far_}) {
    ::setsockopt(fd->get(), SOL_SOCKET, SO_LINGER, &off, sizeof off);
    fd->reset();
  }
}

}  // namespace tensorlane::conformance
