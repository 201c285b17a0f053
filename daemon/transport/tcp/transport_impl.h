// The insides of the TCP transport; others use tcp_transport.h.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/connector.h"
#include "daemon/transport/resume/resumer.h"
#include "daemon/transport/tcp/flow.h"
#include "daemon/transport/tcp/tcp_transport.h"
#include "daemon/transport/tcp/window.h"

namespace tensorlane::tcp {

class TcpTransport final : public ports::Transport, private handshake::ConnectorEvents, private resume::Flows {
 public:
  TcpTransport(const handshake::Protection& protection, ports::FrameSink& sink);
  Status open(const TcpConfig& config);

  void add_job(const ports::JobCredentials& credentials) override;
  void remove_job(JobId job) override;
  Status connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                 Time deadline) override;
  void close(const ports::FlowKey& flow) override;
  bool writable(const ports::FlowKey& flow) const override;
  void send(const ports::FlowKey& flow, const ports::Outgoing& operation) override;
  Bytes in_flight(ClassId cls) override;
  void flush() override;
  std::size_t poll(Time now) override;
  bool arm() override;
  int wake_fd() const override { return connector_.epoll(); }
  ports::FlowStats stats(const ports::FlowKey& flow) const override;
  ports::FlowProgress progress(const ports::FlowKey& flow) const override;
  ports::TransportCounters counters() const override;

 private:
  struct ClassState {
    ClassState(const TcpClass& c) : tag(c.tag), window(c.window) {}
    const ports::ClassTag tag;
    ClassWindow window;
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

  // flows.cc: flows that are up, and how they end.
  void write_dirty(std::size_t& handled);
  void write_flow(Flow& flow, std::size_t& handled);
  void mark_dirty(Flow& flow);
  void serve_flows(std::size_t& handled);
  void on_connected(handshake::Connection& connection) override;
  void on_given_up(const ports::FlowKey& key, Status cause) override;
  void end_flow(resume::Resumable& flow, Status cause) override;
  void report_ended(std::size_t& handled);
  void begin_flow(handshake::Connection& connection, FlowIdentity identity);
  // On a connection that is new to the flow.
  void serve(Flow& flow);

  // After an error of read() or write(): the flow loses its connection, or ends.
  void fail_flow(Flow& flow, Status cause);
  // Of a connection that takes nothing any more: what had arrived, perhaps a goodbye.
  void read_rest(Flow& flow, std::size_t& handled);
  void lose_connection(resume::Resumable& flow, Status cause) override;
  void resume_flow(Flow& flow, handshake::Connection& connection, const resume::FlowExchange& exchange);
  resume::Resumable* find_flow(const ports::FlowKey& key) override;

  void serve_events(std::size_t& handled);

  ports::FrameSink& sink_;
  bool payload_crc_ = false;
  Duration detection_{};
  handshake::Connector connector_;
  resume::Resumer resumer_;
  Time now_;
  std::uint64_t poll_ = 0;
  std::uint64_t turn_ = 0;

  // In the order of service: control, class 0, class 1... Declared before the flows, which refer to the windows.
  std::array<std::unique_ptr<ClassState>, kMaxDataClasses + 1> classes_;
  std::map<ports::FlowKey, std::unique_ptr<Flow>> flows_;
  std::vector<Ended> ended_;

  std::vector<Ready> ready_;
  std::vector<Flow*> writing_;
  ReadBuffers buffers_;

  Time window_look_{0};
  Duration window_wait_{0};
  std::size_t connected_ = 0;           // flows that came up in this poll
  std::uint64_t payloads_dropped_ = 0;  // of flows that have ended
};

}  // namespace tensorlane::tcp
