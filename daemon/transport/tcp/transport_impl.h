// The insides of the TCP transport; others use tcp_transport.h.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/ports/transport.h"
#include "daemon/transport/tcp/connection.h"
#include "daemon/transport/tcp/dialer.h"
#include "daemon/transport/tcp/flow.h"
#include "daemon/transport/tcp/linger.h"
#include "daemon/transport/tcp/listener.h"
#include "daemon/transport/tcp/tcp_transport.h"
#include "daemon/transport/tcp/waker.h"
#include "daemon/transport/tcp/window.h"

namespace tensorlane::tcp {

class TcpTransport final : public ports::Transport {
 public:
  explicit TcpTransport(ports::FrameSink& sink) : sink_(sink) {}
  Status open(const TcpConfig& config);

  void add_job(const ports::JobCredentials& credentials) override;
  void remove_job(JobId job) override;
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                 Time deadline) override;
  void close(const ports::FlowKey& flow) override;
  bool writable(const ports::FlowKey& flow) const override;
  void send(const ports::FlowKey& flow, const ports::Outgoing& operation) override;
  Bytes in_flight(ClassId cls) override;
  std::size_t poll(Time now) override;
  int wake_fd() const override { return epoll_.get(); }
  ports::FlowStats stats(const ports::FlowKey& flow) const override;
  ports::TransportCounters counters() const override;

 private:
  struct ClassState {
    ClassState(const TcpClass& c) : tag(c.tag), window(c.window) {}
    const ports::ClassTag tag;
    ClassWindow window;
    std::unique_ptr<Listener> listener;
    std::vector<Flow*> dirty;  // have queued operations and are not known to be blocked
    Bytes seen_full;           // in flight when the window was last found full
  };
  struct Ready {
    Flow* flow;
    std::uint32_t events;
  };
  // on_flow_down that has yet to be called.
  struct Ended {
    ports::FlowKey key;
    Status cause;
    std::unique_ptr<Flow> flow;
  };

  // tcp_transport.cc: what the lane asks for.
  ClassState* find_class(ClassId cls) const;
  void look_again(ClassState& state, Bytes in_flight);
  void due(Time time);

  // flows.cc: flows that are up, and how they end.
  void write_dirty(std::size_t& handled);
  void write_flow(Flow& flow, std::size_t& handled);
  void mark_dirty(Flow& flow);
  void serve_flows(std::size_t& handled);
  void establish(Connection& connection, std::size_t& handled);
  void end_flow(Flow& flow, Status cause);
  void report_ended(std::size_t& handled);

  // connections.cc: connections that are not flows yet.
  void accept_all(Listener& listener);
  void out_of_descriptors(Listener& listener);
  void advance(Connection& connection, std::size_t& handled);
  void accepted_failed(Connection& connection);
  void dial(Dialer& dialer);
  void dial_failed(Dialer& dialer, const Status& cause, Refusal refusal);
  void retire(std::unique_ptr<Connection> connection);
  void linger(Fd socket, bool in_epoll);
  void drain(Linger& linger);
  void run_deadlines();
  void log_refusal(const Status& cause);
  std::unique_ptr<Connection> take_pending(Connection& connection);

  void serve_events(std::size_t& handled);
  bool watch(Watched& object, int fd, std::uint32_t events, bool known);

  ports::FrameSink& sink_;
  Endpoint source_;
  bool payload_crc_ = false;
  Fd epoll_;
  Waker waker_;
  Watched waker_mark_{Watched::Kind::kWaker};
  Time now_;
  std::uint64_t poll_ = 0;
  std::uint64_t turn_ = 0;

  JobTable jobs_;
  // In the order of service: control, class 0, class 1... Declared before the flows, which refer to the windows.
  std::array<std::unique_ptr<ClassState>, kMaxDataClasses + 1> classes_;
  std::map<ports::FlowKey, std::unique_ptr<Flow>> flows_;
  std::map<ports::FlowKey, std::unique_ptr<Dialer>> dialers_;
  std::vector<std::unique_ptr<Linger>> lingering_;
  std::vector<Ended> ended_;
  std::vector<std::unique_ptr<Watched>> graveyard_;  // may still be named by events in hand; emptied when the poll ends

  std::vector<Ready> ready_;
  std::vector<Flow*> writing_;
  ReadBuffers buffers_;

  Time next_deadline_{kNever};
  Time window_look_{0};
  Duration window_wait_{0};
  ports::TransportCounters counters_;
  std::optional<Time> last_refusal_log_;
  std::uint64_t unlogged_refusals_ = 0;

  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
};

}  // namespace tensorlane::tcp
