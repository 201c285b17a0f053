// Connections that are not flows yet, and sockets that are no longer: listening, accepting, dialling, time-outs,
// lingering. Every transport that begins its flows with the handshake has one; it owns the epoll descriptor that the
// transport's flows share.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/log_gate.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/connection.h"
#include "daemon/transport/handshake/dialer.h"
#include "daemon/transport/handshake/linger.h"
#include "daemon/transport/handshake/listener.h"
#include "daemon/transport/handshake/waker.h"

namespace tensorlane::handshake {

// The configuration of the listener of one class.
struct ListenerConfig {
  ports::ClassTag tag;
  Bytes window = mib(1);  // sizes the send buffers of its sockets
};

struct ConnectorConfig {
  std::string name;                        // "tcp transport", for errors
  std::string listen_address = "0.0.0.0";  // numeric; attempts to connect leave from it too, unless it is a wildcard
  std::uint16_t data_port = 7110;          // the control class listens here, class c at data_port + 1 + c
  std::vector<ListenerConfig> listeners;   // kControlClass and data classes from 0, each once
  std::string unix_folder = {};            // listen and dial by unix_endpoint() in it; empty: over TCP
  ports::ProbeTokens* probes = nullptr;    // whose probes are answered; outlives the connector. Null: nobody's
};

// Position of a class in the order of service, and of its port after data_port: control first.
std::size_t service_order(ClassId cls);
inline constexpr std::size_t kMaxClasses = kMaxDataClasses + 1;

// Who makes flows of what the connector brings. Calls come from inside serve() and run_deadlines().
class ConnectorEvents {
 public:
  virtual ~ConnectorEvents() = default;
  // Authenticated by both ends: take its socket (which stays in the epoll set until it is watched as something else)
  // and its exchange.
  virtual void on_connected(Connection& connection) = 0;
  // What dial() began has come to nothing.
  virtual void on_given_up(const ports::FlowKey& key, Status cause) = 0;
};

// One thread.
class Connector {
 public:
  // `exchanges` may be empty: then nothing but the proof is exchanged. `events` outlives the connector.
  Connector(ConnectorEvents& events, ExchangeFactory exchanges) : events_(events), exchanges_(std::move(exchanges)) {}

  // Errors: kInvalidArgument (an address, or classes that are none), kUnavailable (port in use), kResourceExhausted
  // (descriptors).
  Status open(const ConnectorConfig& config);

  void add_job(const ports::JobCredentials& credentials);
  // Ends dialling for it (without a call of on_given_up): the keys. Handshakes that peers have begun for it fail at
  // their next step.
  std::vector<ports::FlowKey> remove_job(JobId job);
  const JobTable& jobs() const { return jobs_; }

  // As ports::Transport::connect(); `exists`: there is a flow already.
  Status dial(const ports::FlowKey& key, const std::string& address, std::uint16_t data_port, Time deadline,
              bool exists);
  // As dial(), for a flow that dial() has made before and that has lost its connection: attempts from `first` on.
  Status redial(const ports::FlowKey& key, const std::string& address, std::uint16_t data_port, Time first,
                Time deadline);
  // Ends dialling without a call of on_given_up. False when there was none.
  bool cancel(const ports::FlowKey& key);

  // A poll begins.
  void begin(Time now) { now_ = now; }
  // What is ready, without blocking: kReadyAtOnce at most.
  static constexpr std::size_t kReadyAtOnce = 256;
  std::span<const epoll_event> ready();
  // Serves one event of ready(), unless it belongs to a flow or to an object that has gone.
  void serve(const epoll_event& event);
  // What an exchange of this flow, of either end, waited for may have come: see Exchange::settled() and may_answer().
  void settle(const ports::FlowKey& key);
  // Time-outs, retries.
  void run_deadlines();
  // A poll ends: frees what went in it.
  void end() { deferred_.clear(); }

  int epoll() const { return epoll_.get(); }
  Waker& waker() { return waker_; }
  bool watch(Watched& object, int fd, std::uint32_t events, bool known);
  void unwatch(int fd);
  // Deferred delete: keeps an object that has gone until the poll ends, because events in hand may still name it.
  void delete_later(std::unique_ptr<Watched> object) { deferred_.push_back(std::move(object)); }
  // Closes a socket that has said its last word once the peer has heard it.
  void linger(Fd socket, bool in_epoll);
  // When run_deadlines() has something to do.
  Time next_deadline() const { return next_deadline_; }
  static constexpr Time never() { return Time(std::numeric_limits<std::int64_t>::max()); }
  // Warns of a connection that was refused, once a second at most for each address (`whom`).
  void log_refusal(const Status& cause, std::string_view whom = {});
  // Of connections only.
  const ports::TransportCounters& counters() const { return counters_; }

 private:
  struct ClassListener {
    ports::ClassTag tag;
    Bytes window;
    std::unique_ptr<Listener> listener;
  };
  ClassListener* find(ClassId cls);
  Status begin_dialling(const ports::FlowKey& key, const std::string& address, std::uint16_t data_port, Time first,
                        Time deadline, bool again);
  void due(Time time);
  void accept_all(Listener& listener);
  void drop(Listener& listener, std::list<std::unique_ptr<Connection>>::iterator victim);
  void drop_older(const Connection& newer);
  void out_of_descriptors(Listener& listener);
  void advance(Connection& connection);
  void accepted_failed(Connection& connection);
  void start(Dialer& dialer);
  void dial_failed(Dialer& dialer, const Status& cause, Refusal refusal);
  void retire(std::unique_ptr<Connection> connection);
  void drain(Linger& linger);
  std::unique_ptr<Connection> take_pending(Connection& connection);
  void run_listener_deadlines(Listener& listener);

  ConnectorEvents& events_;
  const ExchangeFactory exchanges_;
  Result<Endpoint> endpoint(const std::string& address, std::uint16_t port) const;

  std::string name_;
  std::string unix_folder_;
  ports::ProbeTokens* probes_ = nullptr;
  Endpoint source_;
  Fd epoll_;
  Waker waker_;
  Watched waker_mark_{Watched::Kind::kWaker};
  Time now_;
  JobTable jobs_;
  std::array<std::unique_ptr<ClassListener>, kMaxClasses> class_listeners_;  // in the order of service
  std::map<ports::FlowKey, std::unique_ptr<Dialer>> dialers_;
  std::vector<std::unique_ptr<Linger>> lingering_;
  std::vector<std::unique_ptr<Watched>> deferred_;
  std::array<epoll_event, kReadyAtOnce> ready_;
  Time next_deadline_ = never();
  ports::TransportCounters counters_;
  LogGate log_gate_;
};

}  // namespace tensorlane::handshake
