// The fields of a tensor of a plan that every host must have alike, listed once: for the plan's hash, and for logs.
#pragma once

#include "common/protocol/plan.h"

namespace tensorlane::protocol {

// Tells `fields` each of them, in an order that is part of both:
//   number(x)   an integer, bool or enum
//   real(x)     a float
//   text(x)     a string
//   world(x)    a SharedWorld
// T is PlanTensor, const where `fields` only reads.
template <typename Fields, typename T>
void describe_tensor(Fields& fields, T& t) {
  fields.number(t.id.value);
  fields.number(t.operation);
  fields.number(t.reduce);
  fields.number(t.dtype);
  fields.number(t.pattern);
  fields.number(t.cls.value);
  fields.real(t.urgency);
  fields.number(t.elements);
  fields.number(t.row);
  fields.number(t.slice_elements);
  fields.number(t.root.value);
  fields.number(t.root_rank.value);
  fields.number(t.fp32_contributions);
  fields.number(t.group);
  fields.number(t.batch);
  fields.number(t.batch_offset);
  fields.number(t.members);
  fields.number(t.base);
  fields.number(t.vacant);
  fields.text(t.name);
  fields.world(t.world);
}

}  // namespace tensorlane::protocol
