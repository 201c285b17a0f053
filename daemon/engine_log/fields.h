// The fields of records, described once for whoever writes them and whoever reads them. A codec has
//
//   number(x)         an integer, bool or enum, which the reader refuses when it does not fit
//   beside(x, base)   the same, where it is `base` nearly always
//   time(x)           nanoseconds, near those of the time before
//   real(x)           a float, by its bits
//   text(x)           a string
//   list(x, f)        a vector, f(element) for each
//   world(x)          a protocol::SharedWorld
//
// of Encoder (codec.h) with const values, of Decoder with values to be set.
#pragma once

#include "common/protocol/plan_fields.h"
#include "daemon/engine/engine.h"
#include "daemon/engine_log/format.h"

namespace tensorlane::engine_log {

template <typename Codec, typename D>
void describe_descriptor(Codec& c, D& d) {
  c.number(d.region);
  c.number(d.generation);
  c.number(d.offset);
  c.number(d.length);
}

template <typename Codec, typename H>
void describe_header(Codec& c, H& h) {
  auto& e = h.config;
  c.number(e.job.value);
  c.number(e.epoch.value);
  c.number(e.hosts);
  c.number(e.self.value);
  c.number(e.world_size);
  c.number(e.rails);
  c.number(e.rail.value);
  c.number(e.classes);
  c.number(e.eager_limit.value);
  c.number(e.eager_credits);
  c.number(e.eager_slots);
  c.number(e.staging.value);
  c.number(e.max_queued_slices);
  for (auto& limit : e.limits) {
    c.number(limit.rate.value);
    c.number(limit.burst.value);
  }
  c.number(e.reclassifies);
  c.number(e.single_queue);
  describe_descriptor(c, h.staging);
  c.text(h.job);
  c.text(h.host);
}

// What a plan adds to the one before, in one place; `rank_hosts` is empty where it did not change.
struct PlanGrowth {
  std::uint32_t version = 0;
  std::uint8_t rails = 1;
  protocol::Ordering ordering{};
  std::uint32_t concurrent = 1;
  std::uint32_t first = 0;  // where it is added: behind the tensors of the plan before, or in place of vacant ones
  std::vector<protocol::PlanTensor> tensors;
  std::vector<HostIndex> rank_hosts;
};

template <typename Codec, typename P>
void describe_plan(Codec& c, P& p) {
  c.number(p.version);
  c.number(p.rails);
  c.number(p.ordering);
  c.number(p.concurrent);
  c.number(p.first);
  c.list(p.tensors, [&](auto& tensor) { protocol::describe_tensor(c, tensor); });
  c.list(p.rank_hosts, [&](auto& host) { c.number(host.value); });
}

// Of Engine::vacate().
template <typename Codec, typename R>
void describe_range(Codec& c, R& range) {
  c.number(range.first);
  c.number(range.count);
}

template <typename Codec, typename H>
void describe_frame(Codec& c, H& h) {
  c.number(h.type);
  c.number(h.flags);
  c.number(h.cls.value);
  c.beside(h.job.value, c.job.value);
  c.beside(h.epoch.value, c.epoch.value);
  c.number(h.payload_bytes);
  c.number(h.grant);
  c.number(h.tensor.value);
  c.number(h.sequence.value);
  c.number(h.offset);
  c.number(h.slice);
  c.number(h.aux);
  c.number(h.payload_crc);
}

// What `event.kind` says.
template <typename Codec, typename E>
void describe_event(Codec& c, E& event) {
  using Kind = engine::Event::Kind;
  switch (event.kind) {
    case Kind::kTensorReady:
      c.number(event.tensor_ready.tensor.value);
      c.number(event.tensor_ready.sequence.value);
      describe_descriptor(c, event.tensor_ready.buffer);
      describe_descriptor(c, event.tensor_ready.fp32_scratch);
      return c.number(event.tensor_ready.in_parts);
    case Kind::kPartReady:
      c.number(event.part_ready.tensor.value);
      c.number(event.part_ready.sequence.value);
      c.number(event.part_ready.offset);
      return c.number(event.part_ready.elements);
    case Kind::kFrameArrived:
      c.number(event.frame.peer.value);
      return describe_frame(c, event.frame.header);
    case Kind::kSendDone:
    case Kind::kWorkDone:
      return c.number(event.token);
    case Kind::kBoost:
      c.number(event.boost.tensor.value);
      return c.number(event.boost.sequence.value);
    case Kind::kOffer:
      return c.number(event.offer.tensor.value);
    case Kind::kPeerUp:
      return c.number(event.up.peer.value);
    case Kind::kAbort:
    case Kind::kDrained:
      return;
  }
}

// pick(): its arguments, and how many operations it returned.
struct Pick {
  engine::Flow flow;
  Bytes credit;
  std::uint32_t room = 0, picked = 0;
};

template <typename Codec, typename P>
void describe_pick(Codec& c, P& p) {
  c.number(p.flow.peer.value);
  c.number(p.flow.cls.value);
  c.number(p.credit.value);
  c.number(p.room);
  c.number(p.picked);
}

// set_priority().
struct Priority {
  TensorId tensor;
  float urgency = 0;
  ClassId cls;
};

template <typename Codec, typename P>
void describe_priority(Codec& c, P& p) {
  c.number(p.tensor.value);
  c.real(p.urgency);
  c.number(p.cls.value);
}

}  // namespace tensorlane::engine_log
