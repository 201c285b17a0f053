#include "daemon/transport/tcp/tcp_transport.h"

#include <fmt/format.h>
#include <sodium.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "daemon/transport/tcp/transport_impl.h"

namespace tensorlane::tcp {
namespace {

// How soon a lane that found a window full is woken to look again: first, and at most.
constexpr Duration kFirstLook = microseconds(200);
constexpr Duration kLastLook = milliseconds(1);

// Position in the order of service, and of the listener's port.
std::size_t service_order(ClassId cls) {
  return cls == kControlClass ? 0 : std::size_t{1} + cls.value;
}

std::uint64_t port_of(std::uint16_t data_port, ClassId cls) {
  return data_port + service_order(cls);
}

Status check(const TcpConfig& config) {
  const std::string where = "tcp transport";
  bool control = false;
  for (std::size_t i = 0; i < config.classes.size(); ++i) {
    const TcpClass& c = config.classes[i];
    if (c.tag.cls != kControlClass && c.tag.cls.value >= kMaxDataClasses) {
      return {Code::kInvalidArgument,
              fmt::format("class {}, at most {} data classes are possible", c.tag.cls.value, kMaxDataClasses), where};
    }
    if (c.tag.dscp > 63 || c.tag.pcp > 7) {
      return {Code::kInvalidArgument,
              fmt::format("class {} has DSCP {} and PCP {}", class_name(c.tag.cls), c.tag.dscp, c.tag.pcp), where,
              "a DSCP is at most 63, a PCP at most 7"};
    }
    if (port_of(config.data_port, c.tag.cls) > 65535) {
      return {Code::kInvalidArgument,
              fmt::format("no port for class {}: data_port {} is too high", class_name(c.tag.cls), config.data_port),
              where, "use a data_port below 65526"};
    }
    control = control || c.tag.cls == kControlClass;
    for (std::size_t j = 0; j < i; ++j) {
      if (config.classes[j].tag.cls == c.tag.cls) {
        return {Code::kInvalidArgument, fmt::format("class {} is there twice", class_name(c.tag.cls)), where};
      }
    }
  }
  if (!control || config.classes.size() < 2)
    return {Code::kInvalidArgument, "needs the control class and a data class", where};
  return {};
}

}  // namespace

Result<std::unique_ptr<ports::Transport>> make_tcp_transport(const TcpConfig& config, ports::FrameSink& sink) {
  if (::sodium_init() < 0) return Status(Code::kInternal, "libsodium has no source of random numbers", "tcp transport");
  auto transport = std::make_unique<TcpTransport>(sink);
  TL_RETURN_IF_ERROR(transport->open(config));
  return std::unique_ptr<ports::Transport>(std::move(transport));
}

Status TcpTransport::open(const TcpConfig& config) {
  TL_RETURN_IF_ERROR(check(config));
  TL_ASSIGN_OR_RETURN(source_, parse_endpoint(config.listen_address, 0));
  payload_crc_ = config.payload_crc;
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) {
    return {Code::kResourceExhausted, "cannot make an epoll descriptor: " + errno_text(errno), "tcp transport",
            "raise the limit of open files"};
  }
  TL_RETURN_IF_ERROR(waker_.open(epoll_.get(), &waker_mark_));
  for (const TcpClass& c : config.classes) {
    TL_ASSIGN_OR_RETURN(
        const Endpoint endpoint,
        parse_endpoint(config.listen_address, static_cast<std::uint16_t>(port_of(config.data_port, c.tag.cls))));
    auto state = std::make_unique<ClassState>(c);
    TL_ASSIGN_OR_RETURN(state->listener, Listener::open(endpoint, c.tag, c.window));
    if (!watch(*state->listener, state->listener->fd(), EPOLLIN, false)) {
      return {Code::kResourceExhausted, "cannot watch a listener: " + errno_text(errno), endpoint.text()};
    }
    classes_[service_order(c.tag.cls)] = std::move(state);
  }
  return {};
}

TcpTransport::ClassState* TcpTransport::find_class(ClassId cls) const {
  const std::size_t position = service_order(cls);
  return position < classes_.size() ? classes_[position].get() : nullptr;
}

void TcpTransport::add_job(const ports::JobCredentials& credentials) {
  jobs_[credentials.job] = std::make_shared<const Job>(credentials);
}

void TcpTransport::remove_job(JobId job) {
  std::vector<ports::FlowKey> keys;
  for (const auto& [key, flow] : flows_) {
    if (key.job == job) keys.push_back(key);
  }
  for (const auto& [key, dialer] : dialers_) {
    if (key.job == job) keys.push_back(key);
  }
  for (const auto& key : keys) close(key);
  // Handshakes that peers have begun for it fail at their next step.
  jobs_.erase(job);
}

Status TcpTransport::connect(const ports::FlowKey& flow, const std::string& address, std::uint16_t data_port,
                             Time deadline) {
  const auto job = jobs_.find(flow.job);
  const std::string where =
      connection_name(flow.peer, fmt::format("{}:{}", address, port_of(data_port, flow.cls)), flow.cls);
  if (job == jobs_.end())
    return {Code::kNotFound, fmt::format("job {:#018x} has not been added", flow.job.value), where};
  if (find_class(flow.cls) == nullptr) return {Code::kNotFound, "this transport has no such class", where};
  if (flow.peer <= job->second->self()) {
    return {Code::kInvalidArgument,
            fmt::format("host {} must not connect: the lower index does", job->second->self().value), where};
  }
  if (port_of(data_port, flow.cls) > 65535)
    return {Code::kInvalidArgument, "the peer has no port for the class", where, "use a data_port below 65526"};
  TL_ASSIGN_OR_RETURN(const Endpoint peer,
                      parse_endpoint(address, static_cast<std::uint16_t>(port_of(data_port, flow.cls))));
  if (flows_.contains(flow) || dialers_.contains(flow)) return {Code::kAlreadyExists, "the flow is there", where};
  dialers_[flow] = std::make_unique<Dialer>(flow, job->second, peer, now_, deadline);
  due(now_);
  waker_.kick();
  return {};
}

void TcpTransport::close(const ports::FlowKey& key) {
  if (const auto flow = flows_.find(key); flow != flows_.end()) {
    end_flow(*flow->second, {});
  } else if (const auto dialer = dialers_.find(key); dialer != dialers_.end()) {
    retire(std::move(dialer->second->attempt));
    dialers_.erase(dialer);
    ended_.push_back({key, {}, nullptr});
  }
  waker_.kick();
}

bool TcpTransport::writable(const ports::FlowKey& key) const {
  const auto flow = flows_.find(key);
  return flow != flows_.end() && flow->second->writable();
}

void TcpTransport::send(const ports::FlowKey& key, const ports::Outgoing& operation) {
  const auto flow = flows_.find(key);
  TL_ASSERT(flow != flows_.end());
  flow->second->enqueue(operation, payload_crc_);
  mark_dirty(*flow->second);
}

Bytes TcpTransport::in_flight(ClassId cls) {
  ClassState* state = find_class(cls);
  if (state == nullptr) return Bytes(0);
  const Bytes bytes = state->window.in_flight(poll_);
  if (bytes.value > 0 && bytes + kMaxOperation > state->window.window()) look_again(*state, bytes);
  return bytes;
}

void TcpTransport::look_again(ClassState& state, Bytes in_flight) {
  if (now_ < window_look_) return;  // a look is due already
  const bool moves = in_flight < state.seen_full;
  state.seen_full = in_flight;
  window_wait_ = moves ? kFirstLook : std::clamp(Duration(window_wait_.value * 2), kFirstLook, kLastLook);
  window_look_ = now_ + window_wait_;
  waker_.wake_at(now_, window_look_);
}

void TcpTransport::due(Time time) {
  next_deadline_ = std::min(next_deadline_, time);
}

std::size_t TcpTransport::poll(Time now) {
  now_ = now;
  ++poll_;
  waker_.clear_kick();
  std::size_t handled = 0;
  report_ended(handled);
  write_dirty(handled);
  serve_events(handled);
  if (now_ >= next_deadline_) run_deadlines();
  report_ended(handled);
  graveyard_.clear();
  if (next_deadline_.value != kNever) waker_.wake_at(now_, next_deadline_);
  if (now_ < window_look_) waker_.wake_at(now_, window_look_);
  return handled;
}

void TcpTransport::serve_events(std::size_t& handled) {
  std::array<epoll_event, 256> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  ready_.clear();
  // Flows first, most urgent first; strangers last.
  for (int i = 0; i < count; ++i) {
    auto* object = static_cast<Watched*>(events[i].data.ptr);
    if (object->kind == Watched::Kind::kFlow) ready_.push_back({static_cast<Flow*>(object), events[i].events});
    if (object->kind == Watched::Kind::kWaker) waker_.clear_timer();
  }
  serve_flows(handled);
  for (int i = 0; i < count; ++i) {
    auto* object = static_cast<Watched*>(events[i].data.ptr);
    if (object->gone) continue;
    switch (object->kind) {
      case Watched::Kind::kConnection:
        advance(static_cast<Connection&>(*object), handled);
        break;
      case Watched::Kind::kLinger:
        drain(static_cast<Linger&>(*object));
        break;
      case Watched::Kind::kListener:
        accept_all(static_cast<Listener&>(*object));
        break;
      case Watched::Kind::kFlow:
      case Watched::Kind::kWaker:
        break;
    }
  }
}

bool TcpTransport::watch(Watched& object, int fd, std::uint32_t events, bool known) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &object;
  return ::epoll_ctl(epoll_.get(), known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0;
}

ports::FlowStats TcpTransport::stats(const ports::FlowKey& key) const {
  const auto flow = flows_.find(key);
  return flow == flows_.end() ? ports::FlowStats{} : flow->second->stats();
}

ports::TransportCounters TcpTransport::counters() const {
  ports::TransportCounters counters = counters_;
  for (const auto& [key, flow] : flows_) counters.payloads_dropped += flow->payloads_dropped();
  return counters;
}

}  // namespace tensorlane::tcp
