#include "daemon/session/server.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/assert.h"
#include "common/base/text.h"
#include "daemon/session/process.h"

namespace tensorlane::session {
namespace {

// What an epoll event belongs to: one of the two, or a connection (kProcessToken).
constexpr std::uint64_t kListenerToken = ~std::uint64_t{0};
constexpr std::uint64_t kCallsToken = kListenerToken - 1;

// A tick of the checks for death, damage and time-outs; there are none while nobody is connected.
constexpr Duration kTick = milliseconds(100);
constexpr int kDeferredTickMs = 20;
constexpr Duration kReclaim = milliseconds(500);
constexpr int kIdleMs = 500;  // the watchdog looks whether the thread turns

void watch(int epoll, int fd, std::uint64_t token) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = token;
  TL_ASSERT(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

UniqueFd any_descriptor() {
  return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

// Whether somebody accepts connections there.
bool served(const sockaddr_un& address) {
  const UniqueFd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN;
}

// Status reports wait for their readers: so many pages of all of them, and none for longer than this.
constexpr std::uint64_t kAllStatusPages = 4096;
constexpr Duration kStatusPatience = seconds(5);

// Of all sessions: as many as memory::FaultGuard can guard.
constexpr std::uint64_t kAllSegments = 8192;

Ledger::Rules limit(const SessionConfig& config, const char* what, const char* key, const char* fix,
                    std::uint64_t total) {
  Ledger::Rules rules;
  rules.what = what;
  rules.key = key;
  rules.fix = fix;
  rules.total = total;
  return config.share ? config.share(std::move(rules)) : rules;
}

// One that no key of daemon.yaml says.
Ledger::Rules fixed_limit(const SessionConfig& config, const char* what, const char* fix, std::uint64_t total) {
  Ledger::Rules rules = limit(config, what, "the daemon's limit", fix, total);
  rules.fixed = true;
  return rules;
}

struct Limits {
  Ledger::Rules pending, sessions, segments, tensors;
};
Limits rules_of(const SessionConfig& c) {
  return {limit(c, "connections that have not said hello", "max_pending", "try again in a few seconds", c.max_pending),
          limit(c, "sessions", "max_sessions", "end other jobs", c.max_sessions),
          fixed_limit(c, "segments of shared memory", "use fewer and larger ones", kAllSegments),
          limit(c, "tensors", "max_tensors", "register fewer, larger tensors", c.max_tensors)};
}

std::string seconds_text(Duration d) {
  const std::int64_t tenths = d.value / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace

SessionServer::SessionServer(SessionConfig config, ports::SharedMemoryPool& pool)
    : config_(std::move(config)),
      pool_(pool),
      calls_(std::make_shared<CallQueue>()),
      pending_(rules_of(config_).pending),
      requests_(fixed_limit(config_, "questions under way", "wait for answers", ports::kMaxRequests)),
      status_pages_(fixed_limit(config_, "pages of status reports", "read those that were asked for", kAllStatusPages)),
      packet_(protocol::kMaxMessage) {
  const Limits limits = rules_of(config_);
  ledgers_[kSessions] = std::make_shared<Ledger>(limits.sessions);
  ledgers_[kDescriptors] = config_.descriptors ? config_.descriptors : std::make_shared<Ledger>(Ledger::Rules());
  ledgers_[kSegments] = std::make_shared<Ledger>(limits.segments);
  ledgers_[kTensors] = std::make_shared<Ledger>(limits.tensors);
}

SessionServer::~SessionServer() {
  stop();
}

Status SessionServer::start(ports::JobControl& control) {
  TL_ASSERT(!thread_.joinable());
  control_ = &control;
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  spare_ = any_descriptor();
  TL_ASSERT(epoll_ && spare_);
  if (config_.listen_fd >= 0) {
    listener_ = UniqueFd(config_.listen_fd);
    fcntl(listener_.get(), F_SETFL, fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
  } else {
    TL_RETURN_IF_ERROR(open_socket());
  }
  refuse_descriptors(listener_.get());
  watch(epoll_.get(), listener_.get(), kListenerToken);
  watch(epoll_.get(), calls_->fd(), kCallsToken);
  worker_ = std::make_unique<Worker>();
  disposer_ = std::make_unique<Worker>();
  closer_ = std::make_unique<Closer>();
  thread_ = std::thread([this] { loop(); });
  pthread_setname_np(thread_.native_handle(), "tl-sessions");
  return {};
}

Status SessionServer::open_socket() {
  const std::string& path = config_.socket_path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Status(
        Code::kInvalidArgument, "cannot serve sessions",
        "the socket's path '" + path + "' has " + std::to_string(path.size()) + " bytes, 1 to 107 are possible",
        "set socket");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const auto failed = [&](const char* call) {
    const Code code = errno == EACCES || errno == EPERM ? Code::kPermissionDenied : Code::kUnavailable;
    return Status(code, "cannot serve sessions", std::string(call) + " " + path + ": " + std::strerror(errno),
                  "create the folder for the daemon's user or set socket");
  };
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return Status(Code::kInvalidArgument, "cannot serve sessions", path + " exists and is not a socket",
                    "set socket to another path");
    }
    if (served(address)) {
      return Status(Code::kAlreadyExists, "cannot serve sessions", "another daemon serves " + path,
                    "stop it or set socket");
    }
    if (unlink(path.c_str()) != 0) return failed("unlink");
  }
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_) return failed("socket");
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return failed("bind");
  owns_path_ = true;
  if (chmod(path.c_str(), config_.socket_mode) != 0) return failed("chmod");
  if (listen(listener_.get(), SOMAXCONN) != 0) return failed("listen");
  return {};
}

void SessionServer::stop() {
  if (thread_.joinable()) {
    calls_->push([this] { stopping_ = true; });
    thread_.join();
  }
  worker_.reset();
  disposer_.reset();
  closer_.reset();
  calls_->close();
  if (std::exchange(owns_path_, false)) unlink(config_.socket_path.c_str());
  listener_.reset();
}

void SessionServer::loop() {
  std::array<epoll_event, 64> events;
  last_tick_ = now();
  while (!stopping_) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms());
    turns_.fetch_add(1, std::memory_order_relaxed);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t token = events[static_cast<std::size_t>(i)].data.u64;
      if (token == kListenerToken) {
        accept_all();
      } else if (token == kCallsToken) {
        calls_->run();
      } else if ((token & kProcessToken) != 0) {
        on_process_end(token & ~kProcessToken);
      } else {
        on_socket(token, events[static_cast<std::size_t>(i)].events);
      }
    }
    tick(now());
  }
  const Status why(Code::kUnavailable, "the daemon is shutting down", config_.socket_path,
                   "start it again and resume from a checkpoint");
  while (!connections_.empty()) end(*connections_.begin()->second, why);
  deferred_.clear();
}

int SessionServer::wait_ms() const {
  if (!deferred_.empty() || !listening_ || !closer_->idle()) return kDeferredTickMs;
  if (connections_.empty()) return kIdleMs;
  Duration wait = kTick;
  for (const auto& [id, c] : connections_) {
    if (c->phase != Phase::kNew && c->detection.value > 0) wait = std::min(wait, Duration(c->detection.value / 8));
  }
  return std::max(1, static_cast<int>(wait.value / 1'000'000));
}

void SessionServer::tick(Time time) {
  closer_->hurry();
  if (!spare_) spare_ = any_descriptor();
  if (!listening_ && spare_ && !closer_->full()) listen_on(true);
  for (std::size_t i = deferred_.size(); i-- > 0;) {
    if (deferred_[i].use_count() > 1) continue;
    // Unmapping gigabytes takes a while.
    disposer_->push(0, [session = std::move(deferred_[i])]() mutable {
      session.reset();
      return true;
    });
    deferred_.erase(deferred_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (pool_.has_leftovers() && time - last_reclaim_ >= kReclaim) {
    last_reclaim_ = time;
    disposer_->push(0, [this] {
      pool_.reclaim();
      return true;
    });
  }
  if (time - last_tick_ < milliseconds(1)) return;
  std::vector<std::uint64_t> ids;
  ids.reserve(connections_.size());
  for (const auto& [id, c] : connections_) ids.push_back(id);
  for (const std::uint64_t id : ids) check_alive(*connections_.at(id), time);
  last_tick_ = time;
}

void SessionServer::check_alive(Connection& c, Time time) {
  if (!c.status.empty() && time - c.status_read > kStatusPatience) c.drop_status();
  if (c.phase == Phase::kNew) {
    if (c.status_asked.has_value() || !c.status.empty()) c.since = time;  // it waits for an answer, or reads it
    if (time - c.since > config_.hello_timeout) {
      end(c, Status(Code::kTimedOut, "no hello", seconds_text(time - c.since) + " after connecting",
                    "use the client library"));
    }
    return;
  }
  c.session->beat();
  if (c.session->damaged()) {
    end(c, Status(Code::kCorrupt, c.who() + " took memory out of its arenas",
                  "pages that it shares with the daemon are gone",
                  "do not punch holes into or truncate memory of tl_alloc"));
    return;
  }
  if (c.phase == Phase::kJoining || c.phase == Phase::kFailed || c.detection.value == 0) return;
  const std::uint64_t beats = c.session->beats();
  if (beats != c.beats) {
    c.beats = beats;
    c.silent = Duration(0);
    return;
  }
  // Our own pauses do not count against the client.
  const Duration step = std::min(time - last_tick_, Duration(std::max(kTick.value * 2, c.detection.value / 4)));
  c.silent += step;
  // Sooner than the detection time: the other hosts have to hear of it within that.
  if (c.silent.value > c.detection.value / 4 * 3) {
    end(c, Status(Code::kTimedOut, c.who() + " has not been heard for " + seconds_text(c.silent),
                  "its detection time is " + seconds_text(c.detection), "check whether the process is stopped"));
  }
}

void SessionServer::accept_all() {
  constexpr int kAtOnce = 16;  // then others have their turn
  for (int i = 0; i < kAtOnce; ++i) {
    if (closer_->full()) return listen_on(false);
    UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client) {
      if (errno == EMFILE || errno == ENFILE) refuse_without_descriptors();
      return;
    }
    admit(std::move(client), now());
  }
}

// With the descriptor that was kept, or the connection would stay in the listen queue and wake us for ever. It comes
// back once the connection is closed.
void SessionServer::refuse_without_descriptors() {
  spare_.reset();
  Connection refused;
  refused.socket = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!refused.socket) return listen_on(false);
  (void)refused.send_error(0, Status(Code::kResourceExhausted, "the daemon has no file descriptors left",
                                     "its limit of open files is reached", "raise LimitNOFILE of the daemon"));
  closer_->close(std::move(refused.socket));
}

void SessionServer::listen_on(bool on) {
  epoll_event event{};
  event.events = on ? std::uint32_t{EPOLLIN} : 0;
  event.data.u64 = kListenerToken;
  TL_ASSERT(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event) == 0);
  listening_ = on;
}

void SessionServer::admit(UniqueFd socket, Time time) {
  auto c = std::make_unique<Connection>();
  c->socket = std::move(socket);
  c->since = time;
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(c->socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return closer_->close(std::move(c->socket));
  c->uid = peer.uid;
  c->pid = static_cast<std::uint32_t>(std::max(peer.pid, 0));  // 0: not in our pid namespace
  const auto& allowed = config_.allowed_uids;
  if (c->uid != 0 && c->uid != geteuid() && std::find(allowed.begin(), allowed.end(), c->uid) == allowed.end()) {
    const Status why(Code::kPermissionDenied, "this user may not use the daemon", "uid " + std::to_string(c->uid),
                     "add the uid to users of the daemon's configuration");
    (void)c->send_error(0, why);
    note_refused(*c, why, time);
    return closer_->close(std::move(c->socket));
  }
  Result<Ledger::Charge> pending = pending_.take({c->uid, ""}, 1);
  if (!pending.ok()) {
    (void)c->send_error(0, pending.status());
    note_refused(*c, pending.status(), time);
    return closer_->close(std::move(c->socket));
  }
  c->pending = std::move(*pending);
  c->id = next_id_++;
  watch(epoll_.get(), c->socket.get(), c->id);
  connections_.emplace(c->id, std::move(c));
}

void SessionServer::on_socket(std::uint64_t id, std::uint32_t events) {
  Connection* c = find(id);
  if (c == nullptr) return;
  if (brings_descriptors(c->socket.get())) {
    return end(*c, Status(Code::kCorrupt, c->who() + " sent descriptors", "clients have none to give",
                          "use a client library of the daemon's version"));
  }
  const ssize_t n =
      (events & EPOLLIN) != 0 ? recv(c->socket.get(), packet_.data(), packet_.size(), MSG_DONTWAIT | MSG_TRUNC) : 0;
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {  // an empty packet means nothing either
    end(*c, Status(Code::kUnavailable, c->who() + " " + describe_end(c->pid), "", "look at that process's output"));
  } else if (static_cast<std::size_t>(n) > packet_.size()) {
    end(*c, Status(Code::kCorrupt, "a packet that is too long",
                   std::to_string(n) + " bytes, the limit is " + std::to_string(packet_.size()),
                   "use a client library of the daemon's version"));
  } else {
    const Status done = handle(*c, std::span(packet_).first(static_cast<std::size_t>(n)));
    if (!done.ok() && c->phase == Phase::kNew) note_refused(*c, done, now());
    settle(*c, done);
    explicit_bzero(packet_.data(), static_cast<std::size_t>(n));  // a hello holds the job's secret
  }
}

void SessionServer::on_process_end(std::uint64_t id) {
  Connection* c = find(id);
  if (c != nullptr)
    end(*c, Status(Code::kUnavailable, c->who() + " " + describe_end(c->pid), "", "look at that process's output"));
}

void SessionServer::note_refused(const Connection& c, const Status& why, Time now) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  if (const auto held_back = log_gate_.pass(now, std::to_string(c.uid))) {
    spdlog::warn("a process of user {} (pid {}) was refused: {}{}", c.uid, c.pid, printable(why.to_string()),
                 held_back_text(*held_back));
  }
}

void SessionServer::delete_later(std::shared_ptr<Session> session) {
  deferred_.push_back(std::move(session));
}

Connection* SessionServer::find(std::uint64_t id) {
  const auto it = connections_.find(id);
  return it == connections_.end() ? nullptr : it->second.get();
}

// ---- calls of other threads ----

void SessionServer::reload(const SessionConfig& next) {
  const Limits limits = rules_of(next);
  pending_.change(limits.pending);
  ledgers_[kSessions]->change(limits.sessions);
  ledgers_[kSegments]->change(limits.segments);
  ledgers_[kTensors]->change(limits.tensors);
  calls_->push([this, users = next.allowed_uids, arena = next.arena_per_session] {
    config_.allowed_uids = users;
    config_.arena_per_session = arena;
  });
}

void SessionServer::joined(ports::SessionId session, Result<ports::JoinInfo> info) {
  calls_->push([this, id = session.value, info = std::move(info)] { on_joined(id, info); });
}

void SessionServer::registered(ports::SessionId session, std::uint32_t request, Result<std::vector<TensorId>> ids) {
  calls_->push([this, id = session.value, request, ids = std::move(ids)] { on_registered(id, request, ids); });
}

void SessionServer::unregistered(ports::SessionId session, std::uint32_t request, Result<std::uint32_t> tensors) {
  calls_->push(
      [this, id = session.value, request, tensors = std::move(tensors)] { on_unregistered(id, request, tensors); });
}

void SessionServer::job_failed(ports::SessionId session, Status cause) {
  calls_->push([this, id = session.value, cause = std::move(cause)] {
    Connection* c = find(id);
    if (c == nullptr || c->phase == Phase::kFailed || c->phase == Phase::kNew) return;
    c->phase = Phase::kFailed;
    c->failure = cause;
    settle(*c, c->send_error(0, cause));
  });
}

void SessionServer::left(ports::SessionId session) {
  calls_->push([this, id = session.value] {
    Connection* c = find(id);
    if (c == nullptr || c->phase != Phase::kLeaving) return;
    (void)c->send(protocol::MessageType::kGoodbye, c->goodbye_request, {});
    end(*c, Status::ok_status());
  });
}

void SessionServer::status(ports::SessionId session, std::uint32_t request, std::string json) {
  calls_->push([this, id = session.value, request, json = std::move(json)] {
    Connection* c = find(id);
    if (c == nullptr) return;
    c->status_asked.reset();
    if (json.empty() || json.size() > protocol::kMaxStatus) {
      settle(*c, c->send_error(request, Status(Code::kResourceExhausted, "the daemon's status is too long",
                                               std::to_string(json.size()) + " bytes of at most " +
                                                   std::to_string(protocol::kMaxStatus),
                                               "read the metrics endpoint instead")));
      return;
    }
    Result<Ledger::Charge> pages = status_pages_.take(c->owner(), Connection::count_status_pages(json.size()));
    if (!pages.ok()) return settle(*c, c->send_error(request, pages.status()));
    c->status = json;
    c->status_pages = std::move(*pages);
    settle(*c, c->send_status_page(request, 0));
  });
}

}  // namespace tensorlane::session
