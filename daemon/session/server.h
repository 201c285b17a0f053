// The daemon's listener for the training processes of its host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/ledger.h"
#include "common/base/log_gate.h"
#include "daemon/ports/session.h"
#include "daemon/ports/shared_memory.h"
#include "daemon/session/closer.h"
#include "daemon/session/connection.h"
#include "daemon/session/unique_fd.h"
#include "daemon/session/worker.h"

namespace tensorlane::session {

struct SessionConfig {
  std::string socket_path = "/run/tensorlane/tensorlaned.sock";
  int listen_fd = -1;                // a listening socket from the service manager instead of socket_path; taken over
  std::uint32_t socket_mode = 0666;  // who may knock; who may come in is decided by uid, and the others are told so
  std::vector<std::uint32_t> allowed_uids;  // beside the daemon's own and root
  std::uint32_t max_sessions = 256;         // whose memory is not given back yet
  std::uint32_t max_pending = 64;           // connections that have not said hello
  std::uint32_t max_tensors = 1 << 20;      // that sessions have registered, or want to
  std::shared_ptr<Ledger> descriptors;      // of the whole daemon; none: nobody counts
  // Completes the rules of a limit by what one user may have of it (config::shared); none: first come, first served.
  std::function<Ledger::Rules(Ledger::Rules)> share;
  Duration hello_timeout = seconds(5);
  std::uint32_t ring_entries = 2 * protocol::kMaxOutstanding;  // a power of two; also for boosts, and hints of parts
  Bytes arena_per_session = mib(16 << 10);
};

// Accepts clients, checks who they are and what they send, gives them rings and arenas, and tells control of them.
// Nothing that a client does or leaves undone blocks, slows or ends it: sends never wait (a client whose buffer is full
// is dropped), one packet of a client is read at a time, large segments are made and dropped on a worker thread, and
// sockets, which may hold anything, are closed on another (closer.h).
//
// For control: every session that join() was called for and that was not refused by joined(error) gets exactly one
// leave(), its last call. leave(ok) means goodbye, or that the client went after its job had failed.
class SessionServer final : public ports::SessionEvents {
 public:
  // `pool` outlives the server.
  SessionServer(SessionConfig config, ports::SharedMemoryPool& pool);
  ~SessionServer() override;

  // Opens the socket and starts the thread. `control` outlives stop(). Errors: AlreadyExists (another daemon serves the
  // socket), InvalidArgument (path), PermissionDenied, Unavailable.
  Status start(ports::JobControl& control);
  // Ends all sessions with "the daemon is shutting down", removes the socket, joins the threads. Idempotent.
  void stop();

  // From now on, for whoever comes: users and limits of `next`. Those who are here stay. Any thread.
  void reload(const SessionConfig& next);

  // ports::SessionEvents
  void joined(ports::SessionId session, Result<ports::JoinInfo> info) override;
  void registered(ports::SessionId session, std::uint32_t request, Result<std::vector<TensorId>> ids) override;
  void unregistered(ports::SessionId session, std::uint32_t request, Result<std::uint32_t> tensors) override;
  void job_failed(ports::SessionId session, Status cause) override;
  void left(ports::SessionId session) override;
  void status(ports::SessionId session, std::uint32_t request, std::string json) override;

  // What of an account each user's jobs have. Any thread.
  std::vector<Ledger::Row> in_use(Account account) const { return ledgers_[account]->rows(); }
  // Sessions whose memory is not given back yet. Any thread.
  std::uint64_t sessions() const { return ledgers_[kSessions]->in_use(); }
  // Processes that were refused: not allowed here, over a limit, or without a hello that makes sense. Any thread.
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }
  // Of the session thread's loop, at least two in a second. Any thread.
  std::uint64_t turns() const { return turns_.load(std::memory_order_relaxed); }

 private:
  // server.cc: the thread
  Status open_socket();
  void loop();
  void tick(Time now);
  int wait_ms() const;
  void accept_all();
  void refuse_without_descriptors();
  // Whether a new connection is accepted now, or waits in the listen queue until the next tick.
  void listen_on(bool on);
  void admit(UniqueFd socket, Time now);
  void on_socket(std::uint64_t id, std::uint32_t events);
  void on_process_end(std::uint64_t id);
  void check_alive(Connection& c, Time now);
  void delete_later(std::shared_ptr<Session> session);
  Result<std::shared_ptr<Session>> make_session(const Connection& c);
  Result<Ledger::Charge> take(const Connection& c, Account account, std::uint64_t amount);
  // Counted, and into the log as often as its gate lets pass: who did not come in, and why.
  void note_refused(const Connection& c, const Status& why, Time now);

  // server_messages.cc: packets in and out. Each handler returns an error when the session is over.
  Status handle(Connection& c, std::span<const std::byte> bytes);
  Status handle_hello(Connection& c, const Packet& packet);
  Status handle_arena(Connection& c, const Packet& packet);
  Status handle_register(Connection& c, const Packet& packet);
  Status handle_overdue(Connection& c, const Packet& packet);
  Status handle_unregister(Connection& c, const Packet& packet);
  Status handle_status(Connection& c, const Packet& packet);
  Status handle_ask(Connection& c, const Packet& packet);
  Status begin_question(Connection& c);
  Status handle_goodbye(Connection& c, const Packet& packet);
  Status check_set(const Connection& c) const;
  Status add_to_group(Connection& c, Registration registration);
  struct SegmentCharges {
    Ledger::Charge descriptor, number;
  };
  void on_segment(std::uint64_t id, std::uint32_t request, std::uint64_t asked,
                  Result<std::shared_ptr<ports::SharedMemory>> segment, SegmentCharges& charges);
  void drop(Result<std::shared_ptr<ports::SharedMemory>> segment);
  void on_joined(std::uint64_t id, const Result<ports::JoinInfo>& info);
  void on_registered(std::uint64_t id, std::uint32_t request, const Result<std::vector<TensorId>>& ids);
  void on_unregistered(std::uint64_t id, std::uint32_t request, const Result<std::uint32_t>& tensors);
  // Tells the client why, tells control, closes. `c` is gone afterwards.
  void end(Connection& c, const Status& why);
  // Ends the connection when `status` is an error.
  void settle(Connection& c, const Status& status) {
    if (!status.ok()) end(c, status);
  }
  Connection* find(std::uint64_t id);

  SessionConfig config_;  // what reload() changes of it is the session thread's
  ports::SharedMemoryPool& pool_;
  ports::JobControl* control_ = nullptr;
  const std::shared_ptr<CallQueue> calls_;
  Ledger pending_, requests_, status_pages_;
  std::array<std::shared_ptr<Ledger>, kAccounts> ledgers_;

  // The session thread owns what follows.
  UniqueFd epoll_, listener_, spare_;  // spare_: given up for a moment to refuse a client when descriptors have run out
  bool stopping_ = false;
  bool listening_ = true;
  bool owns_path_ = false;
  Time last_tick_{}, last_reclaim_{};
  std::uint64_t next_id_ = 1;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<Session>> deferred_;  // ended, but the lane may still hold them
  std::vector<std::byte> packet_;
  LogGate log_gate_;

  std::atomic<std::uint64_t> turns_{0}, refused_{0};
  std::unique_ptr<Worker> worker_, disposer_;  // of memory: makes it, gives it back
  std::unique_ptr<Closer> closer_;
  std::thread thread_;
};

}  // namespace tensorlane::session
