#include "switch-config/intent/treatment.h"

namespace tensorlane::switches {
namespace {

using Json = nlohmann::ordered_json;

std::optional<std::uint8_t> mapped(const lint::Map* map, std::optional<std::uint8_t> from) {
  if (!from || map == nullptr || *from >= map->size) return from;
  return map->to[*from];
}

template <typename Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

Json scheduling_json(const Treatment& treatment) {
  if (!treatment.scheduling) return {};
  const lint::Scheduling& scheduling = *treatment.scheduling;
  return {{"strict", scheduling.strict}, {"weight", or_null(scheduling.weight)}, {"level", or_null(scheduling.level)}};
}

Json ecn_json(const lint::Ecn* ecn) {
  if (ecn == nullptr || !ecn->marks) return {};
  return {{"kmin", or_null(ecn->kmin)},
          {"kmax", or_null(ecn->kmax)},
          {"percent", or_null(ecn->percent)},
          {"unit", ecn->unit}};
}

Json shaper_json(const Treatment& treatment) {
  if (!treatment.shaper) return {};
  const auto& rate = treatment.shaper->rate;
  return {{"percent", or_null(treatment.shaper->percent)}, {"bits_per_second", rate ? Json(rate->value) : Json()}};
}

}  // namespace

Treatment treatment(const lint::Port& in, const lint::Port& out, const Marks& marks) {
  Treatment result;
  result.by_dscp = in.dscp_to_class != nullptr;
  if (result.by_dscp)
    result.cls = in.dscp_to_class->to[marks.dscp];
  else if (in.pcp_to_class != nullptr)
    result.cls = in.pcp_to_class->to[marks.pcp.value_or(0)];
  result.group = mapped(in.class_to_group, result.cls);
  if (result.group && in.pfc && *result.group < lint::kPriorities) {
    result.paused = lint::has(*in.pfc, *result.group);
    if (*result.paused) result.pfc_priority = in.on_wire[*result.group];
  }
  result.queue = mapped(out.class_to_queue, result.cls);
  if (!result.queue || *result.queue >= lint::kPriorities) return result;
  const lint::Queue& queue = out.queues[*result.queue];
  result.scheduling = queue.scheduling;
  result.shaper = queue.shaper;
  result.ecn = queue.ecn;
  return result;
}

Json to_json(const Treatment& treatment) {
  return {{"class", or_null(treatment.cls)},
          {"classified_by", !treatment.cls ? Json() : Json(treatment.by_dscp ? "dscp" : "pcp")},
          {"priority_group", or_null(treatment.group)},
          {"pfc", or_null(treatment.paused)},
          {"pfc_priority", or_null(treatment.pfc_priority)},
          {"queue", or_null(treatment.queue)},
          {"scheduling", scheduling_json(treatment)},
          {"ecn", ecn_json(treatment.ecn)},
          {"shaper", shaper_json(treatment)}};
}

}  // namespace tensorlane::switches
