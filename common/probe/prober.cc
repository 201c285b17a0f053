#include "common/probe/prober.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <random>

namespace tensorlane::probe {
namespace {

class Attempt {
 public:
  Attempt(const FlowSpec& flow, const ProbeOptions& options, Capture* capture, std::uint64_t nonce)
      : flow_(flow), options_(options), capture_(capture), nonce_(nonce), by_(now_ms() + options.timeout_ms) {
    arrival_.id = flow.id;
  }

  // False: it is over at once.
  bool start() {
    const auto to = Address::parse(flow_.address, flow_.port), from = Address::parse(flow_.source, flow_.source_port);
    if (!to || !from || to->is_ipv6() != from->is_ipv6()) return fail(Outcome::kLocal, EINVAL);
    ipv6_ = to->is_ipv6();
    socket_ = make_tagged(*to, flow_.tag);
    if (!socket_.valid()) return fail(Outcome::kLocal, errno);
    forget_on_close(socket_.fd());
    set_hop_limit(socket_.fd(), ipv6_, kHopLimit);
    if (const int error = bind_to(socket_.fd(), *from); error != 0) return fail(Outcome::kLocal, error);
    const int connected = ::connect(socket_.fd(), to->get(), to->length);
    const int error = errno;
    arrival_.source_port = local_port(socket_.fd());
    arrival_.own = read_tag(socket_.fd(), ipv6_);
    if (connected == 0 || error == EINPROGRESS) return true;
    return fail_by(error);
  }

  // False: it is over.
  bool go_on(short events) {
    if (events == 0) return now_ms() <= by_ || fail(connected_ ? Outcome::kHangs : Outcome::kTimedOut, 0);
    return connected_ ? receive() : greet();
  }

  int fd() const { return socket_.fd(); }
  short wanted() const { return connected_ ? POLLIN : POLLOUT; }
  const Arrival& arrival() {
    if (capture_ != nullptr && arrival_.source_port != 0) {
      const auto marks = capture_->outgoing(flow_.address, flow_.port, arrival_.source_port);
      if (marks) arrival_.left = *marks;
    }
    return arrival_;
  }

 private:
  bool fail(Outcome outcome, int error) {
    arrival_.outcome = outcome;
    arrival_.error = error;
    return false;
  }
  bool fail_by(int error) {
    if (error == ECONNREFUSED) return fail(Outcome::kRefused, error);
    if (error == ETIMEDOUT) return fail(Outcome::kTimedOut, error);
    const bool local =
        error == EADDRNOTAVAIL || error == EMFILE || error == ENFILE || error == EACCES || error == EPERM;
    return fail(local ? Outcome::kLocal : Outcome::kUnreachable, error);
  }

  bool greet() {
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return fail_by(error);
    connected_ = true;
    Hello hello;
    hello.token = options_.token;
    hello.nonce = nonce_;
    if (::send(fd(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) return fail(Outcome::kSilent, 0);
    return true;
  }

  bool receive() {
    const ssize_t got = ::recv(fd(), inbox_ + bytes_, sizeof inbox_ - bytes_, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return fail(bytes_ == 0 ? Outcome::kSilent : Outcome::kRubbish, 0);
    bytes_ += static_cast<std::size_t>(got);
    if (bytes_ < sizeof inbox_) return true;
    std::memcpy(&arrival_.answer, inbox_, sizeof inbox_);
    const Answer& answer = arrival_.answer;
    const bool sound = answer.magic == kMagic && answer.version == kVersion && answer.nonce == nonce_ &&
                       (answer.dscp < 64 || answer.dscp == kUnknown) && (answer.pcp < 8 || answer.pcp == kUnknown);
    return fail(sound ? Outcome::kArrived : Outcome::kRubbish, 0);
  }

  const FlowSpec& flow_;
  const ProbeOptions& options_;
  Capture* const capture_;
  const std::uint64_t nonce_;
  const std::int64_t by_;
  bool ipv6_ = false, connected_ = false;
  Socket socket_;
  std::uint8_t inbox_[sizeof(Answer)] = {};
  std::size_t bytes_ = 0;
  Arrival arrival_;
};

}  // namespace

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kArrived:
      return "arrived";
    case Outcome::kRefused:
      return "refused";
    case Outcome::kUnreachable:
      return "unreachable";
    case Outcome::kSilent:
      return "silent";
    case Outcome::kHangs:
      return "hangs";
    case Outcome::kTimedOut:
      return "timed_out";
    case Outcome::kNotSent:
      return "not_sent";
    case Outcome::kRubbish:
      return "rubbish";
    case Outcome::kLocal:
      break;
  }
  return "local";
}

void probe(const std::vector<FlowSpec>& flows, const ProbeOptions& options, Capture* capture,
           const std::function<void(const Arrival&)>& tell) {
  const std::int64_t until = now_ms() + options.deadline_ms;
  std::mt19937_64 random(std::random_device{}());
  std::deque<std::unique_ptr<Attempt>> under_way;
  std::size_t next = 0;
  while (next < flows.size() || !under_way.empty()) {
    while (next < flows.size() && under_way.size() < options.at_once) {
      auto attempt = std::make_unique<Attempt>(flows[next++], options, capture, random());
      if (now_ms() < until && attempt->start())
        under_way.push_back(std::move(attempt));
      else
        tell(attempt->arrival());
    }
    std::vector<pollfd> waited;
    waited.reserve(under_way.size());
    for (const auto& attempt : under_way) waited.push_back({attempt->fd(), attempt->wanted(), 0});
    ::poll(waited.data(), waited.size(), 20);
    std::size_t at = 0;
    std::erase_if(under_way, [&](const std::unique_ptr<Attempt>& attempt) {
      const short events = waited[at++].revents;
      if (attempt->go_on(events) && now_ms() < until) return false;
      tell(attempt->arrival());
      return true;
    });
  }
}

}  // namespace tensorlane::probe
